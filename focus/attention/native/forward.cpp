// Attention under the hard mask on CPU, in one pass over the pairs that it keeps (docs/method.md, "A
// whole sequence"). Of a group's keys a query meets a prefix, those that have left its window; sinks
// stand first in every group's and are counted in a query's first group alone. Further keys of single
// queries come last, one by one.
//
// Keys lie in panels of PANEL keys, transposed, so that both products broadcast from the left and
// stream whole vectors from the right. float32 throughout; bfloat16 is converted on the way in and out,
// or computed with (tile_pairs.h).

#include "tile_pairs.h"

struct Item {
    int b, head, group, first;  // some queries of a list
};

// sums, most and norm are the running softmax between the phases.
struct Forward : Call {
    explicit Forward(const Problem &problem) : Call(problem, pairs_run(problem)) {}
    std::vector<Packed> keys, values;       // by (sequence, key head): in panels, and as rows
    std::vector<std::vector<Item>> rounds;  // a query's groups come one after the other
    float *sums = nullptr, *most = nullptr, *norm = nullptr;

    float *sums_at(int b, int head, int t) const {
        if (sums) return sums + state_at(b, head, t) * p.dim;
        return (float *)row_of(p.out, p.out_strides, b, head, start_of(b) + t, 4);
    }
};

static Tile new_tile(const Problem &p, float *scratch) {
    Tile tile;
    tile.query = scratch, tile.sums = scratch + TILE * p.dim;
    tile.weights = scratch + 2 * TILE * p.dim;
    tile.narrow_query = (uint16_t *)(tile.weights + TILE * BLOCK);
    tile.narrow_weights = tile.narrow_query + TILE * p.dim;
    tile.dim = p.dim, tile.window = p.window, tile.base2 = p.scale / LN2;
    return tile;
}

static size_t scratch_of(const Problem &p) {
    return 2 * (size_t)TILE * p.dim + (size_t)TILE * BLOCK + TILE * (p.dim + BLOCK) / 2;
}

static float enter(const Forward &c, Tile &tile, int i, int b, int head, int t, bool resume, bool near) {
    const Problem &p = c.p;
    const Unit &unit = c.unit_of(b, head);
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
    const char *from = row_of(p.query, p.query_strides, b, head, unit.start + t, c.row_size);
    if (c.pairs) memcpy(tile.narrow_query + i * p.dim, from, p.dim * 2);
    if (c.pairs && !near) return 0;
    return read_row(from, p.bfloat16, p.dim, tile.base2, tile.query + i * p.dim);
}

static void pad(Tile &tile, int rows) {
    for (int i = rows; i % STRIP || i % 16; i++) {
        tile.low[i] = tile.high[i] = 0, tile.most[i] = NOTHING, tile.norm[i] = 0;
        tile.groups[i] = 0, tile.position[i] = 0;
        memset(tile.query + i * tile.dim, 0, tile.dim * sizeof(float));
        memset(tile.narrow_query + i * tile.dim, 0, tile.dim * 2);
        memset(tile.sums + i * tile.dim, 0, tile.dim * sizeof(float));
    }
}

template <Rule RULE>
static void attend(const Forward &c, Tile &tile, const Keys &keys, int rows) {
    pad(tile, rows);
    c.pairs ? attend_pairs<RULE>(tile, keys, rows) : attend<RULE>(tile, keys, rows);
}

static void run_far(const Forward &c, const Item &item, float *scratch) {
    const Problem &p = c.p;
    const int b = item.b;
    const Unit &unit = c.unit_of(b, item.head);
    const int which = b * p.key_heads + c.key_head_of(item.head);
    const ptrdiff_t slot = unit.key_offset[item.group], at = slot * p.dim;
    const int rows = min_of(TILE, unit.query_offset[item.group + 1] - item.first);
    const uint64_t earlier = ((uint64_t)1 << item.group) - 1;
    Tile tile = new_tile(p, scratch);
    tile.earlier = earlier, tile.begin = 0;
    for (int i = 0; i < rows; i++) {
        const int t = unit.query_at[item.first + i];
        const bool first = (unit.query_groups[t] & earlier) == 0;
        enter(c, tile, i, b, item.head, t, !first, false);
        tile.high[i] = unit.query_high[item.first + i];
        tile.low[i] = first ? 0 : min_of(unit.sinks, tile.high[i]);
    }
    const Packed &packed = c.keys[which], &values = c.values[which];
    const Keys keys = {packed.at(packed.far_panels, at), values.at(values.far_rows, at), p.dim,
                       words_at(unit.slot_words[0], slot), words_at(unit.slot_words[1], slot)};
    c.repeats ? attend<FIRST>(c, tile, keys, rows) : attend<RANGE>(c, tile, keys, rows);
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
    const Unit &unit = c.unit_of(b, head);
    const int key_head = c.key_head_of(head), size = c.row_size;
    float row[MOST_DIM];
    for (int i = 0; i < rows; i++) {
        const int32_t *own = c.extra_of(b, first + i);
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
    const Unit &unit = c.unit_of(b, head);
    const int rows = min_of(TILE, unit.tokens - first);
    const int which = b * p.key_heads + c.key_head_of(head);
    float bad = 0;
    Tile tile = new_tile(p, scratch);
    tile.begin = c.mode == DENSE ? 0 : max_of(0, first - c.window + 1);
    for (int i = 0; i < rows; i++) {
        const int t = first + i;
        bad += enter(c, tile, i, b, head, t, c.far, true);
        tile.low[i] = c.mode == DENSE ? 0 : max_of(0, t - c.window + 1), tile.high[i] = t + 1;
    }
    Keys keys = {c.keys[which].near_panels, c.values[which].near_rows, p.dim,
                 words_at(unit.key_words[0], 0), words_at(unit.key_words[1], 0)};
    if (!keys.values)
        keys.values = (const float *)row_of(p.value, p.value_strides, b, c.key_head_of(head),
                                            unit.start, 4),
        keys.stride = p.value_strides[2];
    c.mode == DENSE ? attend<TEST>(c, tile, keys, rows) : attend<RANGE>(c, tile, keys, rows);
    for (int i = 0; c.pairs && i < rows; i++) tile.most[i] *= tile.base2;
    if (p.extra) run_extra(c, tile, rows, b, head, first);
    for (int i = 0; i < rows; i++) {
        const int t = unit.start + first + i;
        char *to = (char *)row_of(p.out, p.out_strides, b, head, t, c.row_size);
        const float part = 1 / tile.norm[i], *sums = tile.sums + i * p.dim;
        for (int d = 0; d < p.dim; d += LANES)
            if (p.bfloat16)
                store_bfloat16((uint16_t *)to + d, load(sums + d) * part);
            else
                store((float *)to + d, load(sums + d) * part);
        p.lse[((size_t)b * p.heads + head) * p.tokens + t] =
            (tile.most[i] + log2f(tile.norm[i])) * LN2;
    }
    return bad == 0;
}

static void make_items(Forward &c) {
    const Problem &p = c.p;
    c.rounds.resize(c.single ? 1 : p.groups);
    for (int round = 0; round < (int)c.rounds.size(); round++) {
        const int g0 = c.single ? 0 : round, g1 = c.single ? p.groups : round + 1;
        int longest = 0;
        for (const Unit &unit : c.unit)
            for (int g = g0; g < g1; g++)
                longest = max_of(longest, unit.query_offset[g + 1] - unit.query_offset[g]);
        // The longest staircases of a round come first.
        for (int tile = (longest - 1) / TILE; longest && tile >= 0; tile--)
            for (int b = 0; b < p.batch; b++)
                for (int h = 0; h < p.heads; h++)
                    for (int g = g0; g < g1; g++) {
                        const std::vector<int> &offset = c.unit_of(b, h).query_offset;
                        if (offset[g] + tile * TILE < offset[g + 1])
                            c.rounds[round].push_back(Item{b, h, g, offset[g] + tile * TILE});
                    }
    }
}

static void reserve(Forward &c) {
    const Problem &p = c.p;
    for (int i = 0; i < p.batch * p.key_heads; i++) {
        const Unit &unit = c.keys_of(i / p.key_heads, i % p.key_heads);
        const size_t near = (size_t)up(unit.tokens + 1, PANEL) * p.dim;
        const size_t far = (size_t)unit.slots * p.dim + 1;
        Packed keys = {}, values = {};
        keys.pairs = values.pairs = c.pairs;
        keys.near_panels = c.take(near);
        if (p.bfloat16) values.near_rows = c.take(near);
        if (c.far) keys.far_panels = c.take(far), values.far_rows = c.take(far);
        c.keys.push_back(keys), c.values.push_back(values);
    }
    if (!c.far) return;
    const size_t rows = (size_t)p.batch * p.heads * p.tokens;
    c.most = c.take(rows), c.norm = c.take(rows);
    if (p.bfloat16) c.sums = c.take(rows * p.dim);
}

static int run(Forward &c) {
    const Problem &p = c.p;
    int panels = 1, bad = 0;
    for (const Unit &unit : c.unit)
        panels = max_of(panels, (max_of(unit.tokens, unit.slots) + PANEL - 1) / PANEL);
    const int64_t packed = (int64_t)p.batch * p.key_heads * panels, heads = (int64_t)p.batch * p.heads;
    const int64_t near = heads * ((p.tokens + TILE - 1) / TILE);
#pragma omp parallel num_threads(p.threads) reduction(| : bad)
    {
        float *scratch = room<float>(scratch_of(p));
        const Registers registers(c.pairs);
        if (!scratch) bad |= 2;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < packed; i++) {
            const int which = (int)(i / panels), panel = (int)(i % panels);
            bad |= !pack(c, p.key, p.key_strides, which, panel, c.keys[which]);
            bad |= !pack(c, p.value, p.value_strides, which, panel, c.values[which]);
        }
        for (const std::vector<Item> &round : c.rounds) {
#pragma omp for schedule(dynamic, 1)
            for (int i = 0; i < (int)round.size(); i++)
                if (scratch) run_far(c, round[i], scratch);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = near - 1; i >= 0; i--) {
            const int first = (int)(i / heads) * TILE, which = (int)(i % heads);
            const int b = which / p.heads, head = which % p.heads;
            if (scratch && first < c.unit_of(b, head).tokens)
                bad |= !run_near(c, b, head, first, scratch);
        }
        free(scratch);
    }
    return bad & 2 ? NO_MEMORY : bad ? NOT_FINITE : DONE;
}

// Attention of a whole call; a Status. Padding of `out` and `lse` is left as it is.
extern "C" int focus_attention_forward(const Problem *problem) {
    return tried([&] {
        Forward c(*problem);
        const int status = prepare_units(c);
        if (status != DONE) return status;
        if (c.far) make_items(c);
        reserve(c);
        return run(c);
    });
}

// What a call must keep to: head dimensions a multiple of the first and up to the third; groups.
extern "C" void focus_limits(int32_t *limits) {
    limits[0] = LANES, limits[1] = MOST_GROUPS, limits[2] = MOST_DIM;
}
