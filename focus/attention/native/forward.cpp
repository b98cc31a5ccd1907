// Attention under the hard mask on CPU, in one pass over the pairs that it keeps.
//
// Two phases, each in tiles of queries with the running softmax of FlashAttention:
//   far   for each group, the queries that look into it, in order of position, against the keys that
//         are found in it and have left the window (a prefix of the group's keys: a staircase).
//         Sinks stand first in every group's keys and are counted in a query's first group alone.
//   near  the window, in order of position, continuing from what the far phase left; at last the
//         few further keys that single queries were given, one by one.
// A pair is computed once: where both sides may hold several groups, only in the first they share.
// With `dense`, the near phase alone goes over every causal pair and tests it: for short sequences
// and masks that keep most pairs.
//
// Keys lie in panels of PANEL keys, transposed, so that both products broadcast from the left and
// stream whole vectors from the right. float32 throughout; bfloat16 is converted on the way in and out.

#include "rows.h"
#include "tile.h"

// Everything of one call; sums, most and norm are the running softmax between the phases.
struct Forward : Call {
    using Call::Call;
    float **near_panels = nullptr, **near_values = nullptr;  // by (sequence, key head)
    float **far_panels = nullptr, **far_values = nullptr;
    float *sums = nullptr, *most = nullptr, *norm = nullptr;
    Item *items = nullptr;
    int *round_end = nullptr, rounds = 0;
    double since = 0;

    void stamp(int part) {
        const double now = seconds_now();
        if (p.seconds) p.seconds[part] = now - since;
        since = now;
    }
    float *sums_at(int b, int head, int t) const {
        if (sums) return sums + state_at(b, head, t) * p.dim;
        return (float *)row_of(p.out, p.out_strides, b, head, unit[b * per_sequence].start + t, 4);
    }
};

static Tile new_tile(const Problem &p, float *scratch) {
    Tile tile;
    tile.query = scratch, tile.sums = scratch + TILE * p.dim;
    tile.weights = scratch + 2 * TILE * p.dim;
    tile.dim = p.dim, tile.window = p.window;
    return tile;
}

static float enter(const Forward &c, Tile &tile, int i, int b, int head, int t, bool resume) {
    const Problem &p = c.p;
    const Unit &unit = c.unit[c.unit_of(b, head)];
    const float base2 = p.scale / LN2;
    tile.position[i] = t, tile.groups[i] = unit.query_groups[t], tile.sinks = unit.sinks;
    const size_t at = c.state_at(b, head, t);
    float *sums = tile.sums + i * p.dim;
    if (resume && c.norm[at] > 0) {
        tile.most[i] = c.most[at], tile.norm[i] = c.norm[at];
        memcpy(sums, c.sums_at(b, head, t), p.dim * sizeof(float));
    } else {
        tile.most[i] = NOTHING, tile.norm[i] = 0;
        memset(sums, 0, p.dim * sizeof(float));
    }
    return read_row(row_of(p.query, p.query_strides, b, head, unit.start + t, c.row_size),
                    p.bfloat16, p.dim, base2, tile.query + i * p.dim);
}

static void pad(Tile &tile, int rows) {
    for (int i = rows; i % STRIP; i++) {
        tile.low[i] = tile.high[i] = 0, tile.most[i] = NOTHING, tile.norm[i] = 0;
        tile.groups[i] = 0, tile.position[i] = 0;
        memset(tile.query + i * tile.dim, 0, tile.dim * sizeof(float));
        memset(tile.sums + i * tile.dim, 0, tile.dim * sizeof(float));
    }
}

static void run_far(const Forward &c, const Item &item, float *scratch) {
    const Problem &p = c.p;
    const Unit &unit = c.unit[item.unit];
    const int b = item.unit / c.per_sequence, key_head = c.key_head_of(item.head);
    const int which = b * p.key_heads + key_head, slot = unit.key_offset[item.group];
    const int rows = min_of(TILE, unit.query_offset[item.group + 1] - item.first);
    const uint64_t earlier = ((uint64_t)1 << item.group) - 1;
    Tile tile = new_tile(p, scratch);
    tile.earlier = earlier;
    for (int i = 0; i < rows; i++) {
        const int t = unit.query_at[item.first + i];
        const bool first = (unit.query_groups[t] & earlier) == 0;
        enter(c, tile, i, b, item.head, t, !first);
        tile.high[i] = unit.query_high[item.first + i];
        tile.low[i] = first ? 0 : min_of(unit.sinks, tile.high[i]);
    }
    pad(tile, rows);
    const Keys keys = {c.far_panels[which] + (ptrdiff_t)slot * p.dim,
                       c.far_values[which] + (ptrdiff_t)slot * p.dim, p.dim,
                       unit.slot_words[0] + slot, unit.slot_words[1] ? unit.slot_words[1] + slot : NULL};
    c.repeats ? attend<FIRST>(tile, keys, rows) : attend<RANGE>(tile, keys, rows);
    for (int i = 0; i < rows; i++) {
        const size_t at = c.state_at(b, item.head, tile.position[i]);
        c.most[at] = tile.most[i], c.norm[at] = tile.norm[i];
        if (tile.norm[i] > 0)
            memcpy(c.sums_at(b, item.head, tile.position[i]), tile.sums + i * p.dim,
                   p.dim * sizeof(float));
    }
}

// Further keys of the tile's queries; those of a group that a query looks into it has met already.
static void run_extra(const Forward &c, Tile &tile, int rows, int b, int head, int first) {
    const Problem &p = c.p;
    const Unit &unit = c.unit[c.unit_of(b, head)];
    const int key_head = c.key_head_of(head), size = c.row_size;
    float row[MOST_DIM];
    for (int i = 0; i < rows; i++) {
        const int32_t *own = p.extra + ((size_t)b * p.tokens + unit.start + first + i) * p.extras;
        float *query = tile.query + i * p.dim, *sums = tile.sums + i * p.dim;
        for (int e = 0; e < p.extras; e++) {
            if (own[e] < 0 || unit.key_groups[own[e] - unit.start] & tile.groups[i]) continue;
            read_row(row_of(p.key, p.key_strides, b, key_head, own[e], size), p.bfloat16, p.dim, 1, row);
            Vec score = {};
            for (int d = 0; d < p.dim; d += LANES) score += load(query + d) * load(row + d);
            const float logit = total(score), most = logit > tile.most[i] ? logit : tile.most[i];
            const float faded = exp2f(tile.most[i] - most), weight = exp2f(logit - most);
            tile.most[i] = most, tile.norm[i] = tile.norm[i] * faded + weight;
            read_row(row_of(p.value, p.value_strides, b, key_head, own[e], size), p.bfloat16, p.dim, 1,
                     row);
            for (int d = 0; d < p.dim; d += LANES)
                store(sums + d, load(sums + d) * faded + load(row + d) * weight);
        }
    }
}

static bool run_near(const Forward &c, int b, int head, int first, float *scratch) {
    const Problem &p = c.p;
    const Unit &unit = c.unit[c.unit_of(b, head)];
    const int rows = min_of(TILE, unit.tokens - first);
    const int which = b * p.key_heads + c.key_head_of(head);
    float bad = 0;
    Tile tile = new_tile(p, scratch);
    for (int i = 0; i < rows; i++) {
        const int t = first + i;
        bad += enter(c, tile, i, b, head, t, c.far);
        tile.low[i] = c.mode == DENSE ? 0 : max_of(0, t - c.window + 1), tile.high[i] = t + 1;
    }
    pad(tile, rows);
    Keys keys = {c.near_panels[which], c.near_values[which], p.dim, unit.key_words[0],
                 unit.key_words[1]};
    if (!keys.values)
        keys.values = (const float *)row_of(p.value, p.value_strides, b, c.key_head_of(head),
                                            unit.start, 4),
        keys.stride = p.value_strides[2];
    c.mode == DENSE ? attend<TEST>(tile, keys, rows) : attend<RANGE>(tile, keys, rows);
    if (p.extra) run_extra(c, tile, rows, b, head, first);
    for (int i = 0; i < rows; i++) {
        const int t = unit.start + first + i;
        char *to = (char *)row_of(p.out, p.out_strides, b, head, t, c.row_size);
        const float part = 1 / tile.norm[i], *sums = tile.sums + i * p.dim;
        for (int d = 0; d < p.dim; d++)
            if (p.bfloat16)
                ((uint16_t *)to)[d] = to_bfloat16(sums[d] * part);
            else
                ((float *)to)[d] = sums[d] * part;
        p.lse[((size_t)b * p.heads + head) * p.tokens + t] =
            (tile.most[i] + log2f(tile.norm[i])) * LN2;
    }
    return bad == 0;
}

static bool make_items(Forward &c) {
    const Problem &p = c.p;
    size_t count = 0;
    for (int b = 0; b < p.batch; b++)
        for (int h = 0; h < p.heads; h++) {
            const Unit &unit = c.unit[c.unit_of(b, h)];
            for (int g = 0; g < p.groups; g++)
                count += (unit.query_offset[g + 1] - unit.query_offset[g] + TILE - 1) / TILE;
        }
    c.items = room<Item>(count + 1), c.round_end = room<int>(p.groups + 1);
    if (!c.items || !c.round_end) return false;
    // A query's groups come one after the other; the longest staircases of a round come first.
    count = 0, c.rounds = c.single ? 1 : p.groups;
    for (int round = 0; round < c.rounds; round++) {
        const int g0 = c.single ? 0 : round, g1 = c.single ? p.groups : round + 1;
        int longest = 0;
        for (int u = 0; u < c.units; u++)
            for (int g = g0; g < g1; g++)
                longest = max_of(longest,
                                 c.unit[u].query_offset[g + 1] - c.unit[u].query_offset[g]);
        for (int tile = (longest - 1) / TILE; longest && tile >= 0; tile--)
            for (int b = 0; b < p.batch; b++)
                for (int h = 0; h < p.heads; h++)
                    for (int g = g0; g < g1; g++) {
                        const int u = c.unit_of(b, h), *offset = c.unit[u].query_offset;
                        if (offset[g] + tile * TILE < offset[g + 1])
                            c.items[count++] = Item{u, h, g, offset[g] + tile * TILE};
                    }
        c.round_end[round] = (int)count;
    }
    return true;
}

static bool reserve(Forward &c) {
    const Problem &p = c.p;
    const int pairs = p.batch * p.key_heads;
    float ***tables[] = {&c.near_panels, &c.near_values, &c.far_panels, &c.far_values};
    for (float ***table : tables) {
        *table = room<float *>(pairs);
        if (!*table) return false;
        memset(*table, 0, pairs * sizeof(float *));
    }
    for (int i = 0; i < pairs; i++) {
        const int b = i / p.key_heads, key_head = i % p.key_heads;
        const Unit &unit = c.keys_of(b, key_head);
        const size_t near = (size_t)(unit.tokens + PANEL) / PANEL * PANEL * p.dim;
        c.near_panels[i] = room<float>(near);
        if (p.bfloat16) c.near_values[i] = room<float>(near);
        if (!c.near_panels[i] || (p.bfloat16 && !c.near_values[i])) return false;
        if (!c.far) continue;
        c.far_panels[i] = room<float>((size_t)unit.slots * p.dim + 1);
        c.far_values[i] = room<float>((size_t)unit.slots * p.dim + 1);
        if (!c.far_panels[i] || !c.far_values[i]) return false;
    }
    const size_t rows = (size_t)p.batch * p.heads * p.tokens;
    if (p.bfloat16 && c.far && !(c.sums = room<float>(rows * p.dim))) return false;
    return !c.far || ((c.most = room<float>(rows)) && (c.norm = room<float>(rows)));
}

static void release(Forward &c) {
    const int pairs = c.p.batch * c.p.key_heads;
    for (float **table : {c.near_panels, c.near_values, c.far_panels, c.far_values}) {
        for (int i = 0; table && i < pairs; i++) free(table[i]);
        free(table);
    }
    release_units(c);
    for (void *each : {(void *)c.sums, (void *)c.most, (void *)c.norm, (void *)c.items,
                       (void *)c.round_end})
        free(each);
}

static float pack_near(const Forward &c, int64_t task, int most_near) {
    const Problem &p = c.p;
    const int which = (int)(task / most_near), panel = (int)(task % most_near);
    const int b = which / p.key_heads, key_head = which % p.key_heads;
    const Unit &unit = c.keys_of(b, key_head);
    const ptrdiff_t at = (ptrdiff_t)panel * PANEL * p.dim;
    float bad = 0;
    if (panel * PANEL < unit.tokens)
        bad = pack_panel(p, b, key_head, unit.start, NULL, panel * PANEL,
                         unit.tokens - panel * PANEL, c.near_panels[which] + at,
                         c.near_values[which] ? c.near_values[which] + at : NULL);
    return bad;
}

static void pack_far(const Forward &c, int64_t task, int most_far) {
    const Problem &p = c.p;
    const int which = (int)(task / most_far), panel = (int)(task % most_far);
    const int b = which / p.key_heads, key_head = which % p.key_heads;
    const Unit &unit = c.keys_of(b, key_head);
    const ptrdiff_t at = (ptrdiff_t)panel * PANEL * p.dim;
    if (panel * PANEL < unit.slots)
        pack_panel(p, b, key_head, unit.start, unit.key_at + panel * PANEL, 0, PANEL,
                   c.far_panels[which] + at, c.far_values[which] + at);
}

static void blank_padding(const Problem &p) {
    const int size = p.bfloat16 ? 2 : 4;
    for (int b = 0; b < p.batch; b++)
        for (int h = 0; h < p.heads; h++)
            for (int t = 0; t < p.tokens; t++) {
                if (t == p.spans[2 * b]) t = p.spans[2 * b + 1];
                if (t >= p.tokens) break;
                memset((void *)row_of(p.out, p.out_strides, b, h, t, size), 0, p.dim * size);
                p.lse[((size_t)b * p.heads + h) * p.tokens + t] = 0;
            }
}

static int run(Forward &c) {
    const Problem &p = c.p;
    int most_near = 1, most_far = 1, bad = 0, tiles = (p.tokens + TILE - 1) / TILE;
    for (int u = 0; u < c.units; u++) {
        most_near = max_of(most_near, (c.unit[u].tokens + PANEL - 1) / PANEL);
        most_far = max_of(most_far, c.far ? c.unit[u].slots / PANEL : 0);
    }
    const int64_t heads = (int64_t)p.batch * p.key_heads, near = (int64_t)p.batch * p.heads * tiles;
    const size_t scratch_size = 2 * (size_t)TILE * p.dim + (size_t)TILE * BLOCK;
#pragma omp parallel num_threads(p.threads) reduction(| : bad)
    {
        float *scratch = room<float>(scratch_size);
        if (!scratch) bad |= 2;
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < heads * most_near; i++) bad |= !(pack_near(c, i, most_near) == 0);
        if (c.far) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < heads * most_far; i++) pack_far(c, i, most_far);
#pragma omp master
            c.stamp(PACK);
            for (int round = 0, from = 0; round < c.rounds; from = c.round_end[round++]) {
#pragma omp for schedule(dynamic, 1)
                for (int i = from; i < c.round_end[round]; i++)
                    if (scratch) run_far(c, c.items[i], scratch);
            }
        }
#pragma omp barrier
#pragma omp master
        c.stamp(c.far ? FAR : PACK);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = near - 1; i >= 0; i--) {
            const int first = (int)(i / ((int64_t)p.batch * p.heads)) * TILE;
            const int which = (int)(i % ((int64_t)p.batch * p.heads));
            const int b = which / p.heads, head = which % p.heads;
            if (scratch && first < c.unit[b * c.per_sequence].tokens)
                bad |= !run_near(c, b, head, first, scratch);
        }
        free(scratch);
    }
    c.stamp(NEAR);
    return bad & 2 ? NO_MEMORY : bad ? NOT_FINITE : DONE;
}

// Attention of a whole call; a Status. `out` and `lse` are filled where it is DONE.
extern "C" int focus_attention_forward(const Problem *problem) {
    const Problem &p = *problem;
    if (p.dim % LANES || p.dim > MOST_DIM || p.groups > MOST_GROUPS) return UNSUPPORTED;
    Forward c(p);
    c.since = seconds_now();
    int status = prepare_units(c);
    if (status == DONE && !((!c.far || make_items(c)) && reserve(c))) status = NO_MEMORY;
    if (status == DONE) {
        blank_padding(p);
        if (p.chosen) *p.chosen = c.mode;
        c.stamp(READ);
        status = run(c);
    }
    release(c);
    return status;
}

// What a call must keep to: head dimensions a multiple of the first and up to the third; groups.
extern "C" void focus_limits(int32_t *limits) {
    limits[0] = LANES, limits[1] = MOST_GROUPS, limits[2] = MOST_DIM;
}
