// The gradients of attention under the hard mask on CPU, given its output and log-sum-exp: over the
// same pairs as the forward pass, far and near, in tiles.
//
// Lists of groups have gradients of their own for keys (a key may be in several lists), which are
// added to the tokens' at the end.

#include "extra_gradient.h"

static void reserve(Backward &c) {
    const Problem &p = c.p;
    for (int i = 0; i < p.batch * p.key_heads; i++) {
        const Unit &unit = c.keys_of(i / p.key_heads, i % p.key_heads);
        const size_t near = (size_t)up(unit.tokens + 1, PANEL) * p.dim, far = (size_t)unit.slots * p.dim + 1;
        KeySide side = {};
        side.keys.near_panels = c.take(near), side.values.near_panels = c.take(near);
        if (p.bfloat16) side.keys.near_rows = c.take(near);
        if (c.far)
            for (float **each : {&side.keys.far_panels, &side.keys.far_rows, &side.values.far_panels,
                                 &side.far_d_keys, &side.far_d_values})
                *each = c.take(far);
        c.sides.push_back(side);
    }
    const size_t rows = (size_t)p.batch * p.heads * p.tokens;
    c.delta = c.take(rows);
    if (p.extra) c.extra_weights = c.take(2 * rows * p.extras);
}

// ------------------------------------------------------------------------------------------ tiles

static GradTile new_tile(const Problem &p, float *scratch) {
    GradTile tile;
    const size_t rows = (size_t)GRAD_TILE * p.dim, block = (size_t)GRAD_TILE * BLOCK;
    tile.query = scratch, tile.grad = scratch + rows, tile.sums = scratch + 2 * rows;
    tile.weights = scratch + 3 * rows, tile.d_logits = scratch + 3 * rows + block;
    tile.dim = p.dim, tile.window = p.window, tile.earlier = 0;
    return tile;
}

static void enter(const Backward &c, GradTile &tile, int i, int b, int head, int t) {
    const Unit &unit = c.unit_of(b, head);
    const size_t at = c.state_at(b, head, t);
    tile.position[i] = t, tile.groups[i] = unit.query_groups[t], tile.sinks = unit.sinks;
    tile.lse[i] = c.p.lse[at] / LN2, tile.delta[i] = c.delta[at];
    read_query(c, b, head, t, tile.query + i * tile.dim, tile.grad + i * tile.dim);
}

static void pad(GradTile &tile, int rows) {
    for (int i = rows; i % STRIP; i++) {
        tile.low[i] = tile.high[i] = tile.position[i] = 0, tile.groups[i] = 0;
        tile.lse[i] = tile.delta[i] = 0;
        memset(tile.query + i * tile.dim, 0, tile.dim * sizeof(float));
        memset(tile.grad + i * tile.dim, 0, tile.dim * sizeof(float));
    }
    memset(tile.sums, 0, (size_t)up(rows, STRIP) * tile.dim * sizeof(float));
}

static void leave(const Backward &c, const GradTile &tile, int rows, int b, int head) {
    float *d_query = c.head_rows(c.g.d_query, b, head, c.p.heads);
    for (int i = 0; i < rows; i++) {
        float *to = d_query + (ptrdiff_t)tile.position[i] * tile.dim, *sums = tile.sums + i * tile.dim;
        for (int d = 0; d < tile.dim; d += LANES) store(to + d, load(to + d) + load(sums + d) * c.p.scale);
    }
}

static void run_far(const Backward &c, const Cell &cell, int head, const GradKeys &keys, float *scratch) {
    const Unit &unit = c.unit_of(cell.b, head);
    const int *offset = unit.query_offset.data() + cell.group;
    const int last = min_of(offset[1], offset[0] + (cell.queries + 1) * c.cell);
    const int first_key = cell.keys * c.cell, last_key = first_key + c.cell;
    for (int first = offset[0] + cell.queries * c.cell; first < last; first += GRAD_TILE) {
        const int rows = min_of(GRAD_TILE, last - first);
        if (unit.query_high[first + rows - 1] <= first_key) continue;
        GradTile tile = new_tile(c.p, scratch);
        tile.earlier = ((uint64_t)1 << cell.group) - 1;
        for (int i = 0; i < rows; i++) {
            const int t = unit.query_at[first + i], high = unit.query_high[first + i];
            enter(c, tile, i, cell.b, head, t);
            const bool sinks = (tile.groups[i] & tile.earlier) == 0;  // counted in its first group
            tile.high[i] = min_of(high, last_key);
            tile.low[i] = max_of(sinks ? 0 : unit.sinks, first_key);
        }
        pad(tile, rows);
        c.repeats ? attend_back<FIRST>(tile, keys, rows) : attend_back<RANGE>(tile, keys, rows);
        leave(c, tile, rows, cell.b, head);
    }
}

static void run_near(const Backward &c, const Cell &cell, int head, const GradKeys &keys, float *scratch) {
    const Unit &unit = c.unit_of(cell.b, head);
    const int last = min_of(unit.tokens, (cell.queries + 1) * c.cell);
    const int first_key = cell.keys * c.cell, last_key = first_key + c.cell;
    for (int first = cell.queries * c.cell; first < last; first += GRAD_TILE) {
        const int rows = min_of(GRAD_TILE, last - first);
        if (c.mode != DENSE && first - c.window + 1 >= last_key) continue;
        GradTile tile = new_tile(c.p, scratch);
        for (int i = 0; i < rows; i++) {
            const int t = first + i;
            enter(c, tile, i, cell.b, head, t);
            tile.high[i] = min_of(t + 1, last_key);
            tile.low[i] = max_of(c.mode == DENSE ? 0 : t - c.window + 1, first_key);
        }
        pad(tile, rows);
        c.mode == DENSE ? attend_back<TEST>(tile, keys, rows) : attend_back<RANGE>(tile, keys, rows);
        leave(c, tile, rows, cell.b, head);
    }
}

static void run_cell(const Backward &c, const Cell &cell, float *scratch) {
    const Problem &p = c.p;
    const Unit &unit = c.keys_of(cell.b, cell.key_head);
    const KeySide &side = c.sides[cell.b * p.key_heads + cell.key_head];
    const int shared = p.heads / p.key_heads, first = cell.key_head * shared;
    GradKeys keys;
    if (cell.group < 0) {
        keys = {side.keys.near_panels, side.values.near_panels, side.keys.near_rows, p.dim,
                words_at(unit.key_words[0], 0), words_at(unit.key_words[1], 0),
                c.head_rows(c.g.d_key, cell.b, cell.key_head, p.key_heads),
                c.head_rows(c.g.d_value, cell.b, cell.key_head, p.key_heads)};
        if (!keys.rows)
            keys.rows = (const float *)row_of(p.key, p.key_strides, cell.b, cell.key_head, unit.start, 4),
            keys.stride = p.key_strides[2];
    } else {
        const ptrdiff_t slot = unit.key_offset[cell.group], at = slot * p.dim;
        keys = {side.keys.far_panels + at, side.values.far_panels + at, side.keys.far_rows + at, p.dim,
                words_at(unit.slot_words[0], slot), words_at(unit.slot_words[1], slot),
                side.far_d_keys + at, side.far_d_values + at};
    }
    for (int head = first; head < first + shared; head++)
        cell.group < 0 ? run_near(c, cell, head, keys, scratch) : run_far(c, cell, head, keys, scratch);
}

// ----------------------------------------------------------------------------- before and after

static void prepare(const Backward &c, int which, int panel) {
    const Problem &p = c.p;
    const KeySide &side = c.sides[which];
    pack(c, p.key, p.key_strides, which, panel, side.keys);
    pack(c, p.value, p.value_strides, which, panel, side.values);
    const int first = panel * PANEL, size = PANEL * p.dim * sizeof(float);
    if (!c.far || first >= c.keys_of(which / p.key_heads, which % p.key_heads).slots) return;
    memset(side.far_d_keys + (ptrdiff_t)first * p.dim, 0, size);
    memset(side.far_d_values + (ptrdiff_t)first * p.dim, 0, size);
}

static void sum_rows(const Backward &c, int b, int head, int first) {  // delta: grad . out
    const Problem &p = c.p;
    const Unit &unit = c.unit_of(b, head);
    float grad[MOST_DIM], out[MOST_DIM];
    for (int t = first; t < min_of(unit.tokens, first + GRAD_TILE); t++) {
        read_row(row_of(c.g.grad, c.g.grad_strides, b, head, unit.start + t, c.row_size), p.bfloat16,
                 p.dim, 1, grad);
        read_row(row_of(p.out, p.out_strides, b, head, unit.start + t, c.row_size), p.bfloat16, p.dim, 1,
                 out);
        Vec sum = {};
        for (int d = 0; d < p.dim; d += LANES) sum += load(grad + d) * load(out + d);
        c.delta[c.state_at(b, head, t)] = total(sum);
    }
}

// Adds the lists' gradients to the tokens', which were of queries times base 2, not of queries.
static void gather(const Backward &c, int which, bool values) {
    const Problem &p = c.p;
    const int b = which / p.key_heads, head = which % p.key_heads;
    const Unit &unit = c.keys_of(b, head);
    float *rows = c.head_rows(values ? c.g.d_value : c.g.d_key, b, head, p.key_heads);
    const float *slots = values ? c.sides[which].far_d_values : c.sides[which].far_d_keys;
    for (int s = 0; c.far && s < unit.slots; s++) {
        if (unit.key_at[s] < 0) continue;
        float *to = rows + (ptrdiff_t)unit.key_at[s] * p.dim;
        for (int d = 0; d < p.dim; d += LANES)
            store(to + d, load(to + d) + load(slots + (ptrdiff_t)s * p.dim + d));
    }
    for (ptrdiff_t i = 0; !values && i < (ptrdiff_t)unit.tokens * p.dim; i += LANES)
        store(rows + i, load(rows + i) * LN2);
}

// -------------------------------------------------------------------------------------- the call

static int run(const Backward &c) {
    const Problem &p = c.p;
    const Rounds rounds = make_cells(c, c.cell);
    const int pairs = p.batch * p.key_heads, tiles = (p.tokens + GRAD_TILE - 1) / GRAD_TILE;
    int panels = 1, failed = 0;
    for (const Unit &unit : c.unit)
        panels = max_of(panels, (max_of(unit.tokens, unit.slots) + PANEL - 1) / PANEL);
    const size_t scratch_size = (size_t)GRAD_TILE * (3 * p.dim + 2 * BLOCK);
#pragma omp parallel num_threads(p.threads) reduction(| : failed)
    {
        float *scratch = room<float>(scratch_size);
        failed |= !scratch;
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < (int64_t)pairs * panels; i++)
            prepare(c, (int)(i / panels), (int)(i % panels));
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < (int64_t)p.batch * p.heads * tiles; i++)
            sum_rows(c, (int)(i / tiles / p.heads), (int)(i / tiles % p.heads), (int)(i % tiles) * GRAD_TILE);
        for (const std::vector<Cell> &round : rounds) {
#pragma omp for schedule(dynamic, 1)
            for (int i = 0; i < (int)round.size(); i++)
                if (scratch) run_cell(c, round[i], scratch);
        }
        if (p.extra) {
#pragma omp for schedule(dynamic, 64)
            for (int64_t i = 0; i < (int64_t)p.batch * p.heads * p.tokens; i++) {
                const int t = (int)(i % p.tokens), b = (int)(i / p.tokens / p.heads);
                if (t < c.keys_of(b, 0).tokens) extra_queries(c, b, (int)(i / p.tokens % p.heads), t);
            }
#pragma omp for schedule(dynamic, 1)
            for (int i = 0; i < pairs * KEY_PARTS; i++)
                extra_keys(c, i / KEY_PARTS / p.key_heads, i / KEY_PARTS % p.key_heads, i % KEY_PARTS);
        }
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < 2 * pairs; i++) gather(c, i / 2, i % 2);
        free(scratch);
    }
    return failed ? NO_MEMORY : DONE;
}

// Fills d_query, d_key and d_value; a Status.
extern "C" int focus_attention_backward(const GradProblem *problem) {
    return tried([&] {
        Backward c(*problem);
        const int status = prepare_units(c);
        if (status != DONE) return status;
        reserve(c);
        return run(c);
    });
}
