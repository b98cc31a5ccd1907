// The gradients of attention under the hard mask on CPU, given its output and log-sum-exp: over the
// same pairs as the forward pass, far and near, in tiles.
//
// Work is cut into cells, some queries of a list against some of its keys. A round holds cells of
// which no two share a query or a key, so that every sum has one writer and always the same order:
// results do not depend on the number of threads. Lists of groups have gradients of their own for
// keys (a key may be in several lists), which are added to the tokens' at the end.

#include <new>
#include <vector>

#include "gradient.h"
#include "rows.h"

extern "C" struct GradProblem {
    Problem forward;  // with `out` and `lse` as they were computed
    const void *grad;
    int64_t grad_strides[3];
    float *d_query, *d_key, *d_value;  // zero; contiguous (batch, heads or key heads, tokens, dim)
};

// Tokens of a cell's side: fewer in short sequences, so that every thread has some.
enum { CELL = 4 * GRAD_TILE, CELLS = 8, KEY_PARTS = 16 };

struct Cell {
    int b, key_head, group, queries, keys;  // which of the group's parts; group -1: the tokens'
};

// One key head of one sequence, as the tiles read it; near_rows is null where the tensor serves.
struct KeySide {
    float *near_keys, *near_values, *near_rows;
    float *far_keys, *far_values, *far_rows, *far_d_keys, *far_d_values;
};

struct Backward : Call {
    explicit Backward(const GradProblem &problem) : Call(problem.forward), g(problem) {}
    ~Backward() {
        for (void *each : rooms) free(each);
    }
    const GradProblem &g;
    std::vector<void *> rooms;
    std::vector<KeySide> sides;  // by (sequence, key head)
    std::vector<std::vector<Cell>> rounds;
    float *delta = nullptr, *extra_weights = nullptr;  // (batch, heads, tokens); with extras, twice
    int cell = CELL;

    float *take(size_t count) {
        rooms.push_back(room<float>(count));
        if (!rooms.back()) throw std::bad_alloc();
        return (float *)rooms.back();
    }
    float *head_rows(float *base, int b, int head, int heads) const {  // from the first real token
        return base + (((size_t)b * heads + head) * p.tokens + keys_of(b, 0).start) * p.dim;
    }
};

static void reserve(Backward &c) {
    const Problem &p = c.p;
    for (int i = 0; i < p.batch * p.key_heads; i++) {
        const Unit &unit = c.keys_of(i / p.key_heads, i % p.key_heads);
        const size_t near = (size_t)up(unit.tokens + 1, PANEL) * p.dim, far = (size_t)unit.slots * p.dim + 1;
        KeySide side = {};
        side.near_keys = c.take(near), side.near_values = c.take(near);
        if (p.bfloat16) side.near_rows = c.take(near);
        if (c.far)
            for (float **each : {&side.far_keys, &side.far_values, &side.far_rows, &side.far_d_keys,
                                 &side.far_d_values})
                *each = c.take(far);
        c.sides.push_back(side);
    }
    const size_t rows = (size_t)p.batch * p.heads * p.tokens;
    c.delta = c.take(rows);
    if (p.extra) c.extra_weights = c.take(2 * rows * p.extras);
}

// ------------------------------------------------------------------------------------------ cells

static void add_near_cells(Backward &c) {
    const Problem &p = c.p;
    const int parts = (p.tokens + c.cell - 1) / c.cell;
    const int back = c.mode == DENSE ? parts - 1 : min_of(parts - 1, (c.window + c.cell - 2) / c.cell);
    for (int r = 0; r <= back; r++) {
        c.rounds.emplace_back();
        for (int i = parts - 1; i >= r; i--)
            for (int b = 0; b < p.batch; b++)
                for (int head = 0; head < p.key_heads; head++)
                    c.rounds.back().push_back(Cell{b, head, -1, i, i - r});
    }
}

static void add_far_cells(Backward &c, int first_group, int last_group) {
    const Problem &p = c.p;
    int parts = 0;
    for (int u = 0; u < c.units; u++)
        for (int g = first_group; g < last_group; g++) {
            parts = max_of(parts, c.unit[u].query_offset[g + 1] - c.unit[u].query_offset[g]);
            parts = max_of(parts, c.unit[u].key_offset[g + 1] - c.unit[u].key_offset[g]);
        }
    parts = (parts + c.cell - 1) / c.cell;
    for (int r = 0; r < parts; r++) {
        c.rounds.emplace_back();
        for (int i = parts - 1; i >= 0; i--)
            for (int b = 0; b < p.batch; b++)
                for (int head = 0; head < p.key_heads; head++)
                    for (int g = first_group; g < last_group; g++)
                        c.rounds.back().push_back(Cell{b, head, g, i, (i + parts - r) % parts});
    }
}

static void make_cells(Backward &c) {
    const Problem &p = c.p;
    c.cell = max_of(GRAD_TILE, min_of(CELL, down(p.tokens / CELLS, GRAD_TILE)));
    if (c.far && c.single) add_far_cells(c, 0, p.groups);
    for (int g = 0; c.far && !c.single && g < p.groups; g++) add_far_cells(c, g, g + 1);
    add_near_cells(c);
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

static void read_query(const Backward &c, int b, int head, int t, float *query, float *grad) {
    const Problem &p = c.p;
    const int at = c.unit[b * c.per_sequence].start + t;
    read_row(row_of(p.query, p.query_strides, b, head, at, c.row_size), p.bfloat16, p.dim,
             p.scale / LN2, query);
    read_row(row_of(c.g.grad, c.g.grad_strides, b, head, at, c.row_size), p.bfloat16, p.dim, 1, grad);
}

static void enter(const Backward &c, GradTile &tile, int i, int b, int head, int t) {
    const Unit &unit = c.unit[c.unit_of(b, head)];
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
    const Unit &unit = c.unit[c.unit_of(cell.b, head)];
    const int *offset = unit.query_offset + cell.group;
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
    const Unit &unit = c.unit[c.unit_of(cell.b, head)];
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
        keys = {side.near_keys, side.near_values, side.near_rows, p.dim, unit.key_words[0],
                unit.key_words[1], c.head_rows(c.g.d_key, cell.b, cell.key_head, p.key_heads),
                c.head_rows(c.g.d_value, cell.b, cell.key_head, p.key_heads)};
        if (!keys.rows)
            keys.rows = (const float *)row_of(p.key, p.key_strides, cell.b, cell.key_head, unit.start, 4),
            keys.stride = p.key_strides[2];
    } else {
        const ptrdiff_t slot = unit.key_offset[cell.group], at = slot * p.dim;
        keys = {side.far_keys + at, side.far_values + at, side.far_rows + at, p.dim,
                unit.slot_words[0] + slot, unit.slot_words[1] ? unit.slot_words[1] + slot : NULL,
                side.far_d_keys + at, side.far_d_values + at};
    }
    for (int head = first; head < first + shared; head++)
        cell.group < 0 ? run_near(c, cell, head, keys, scratch) : run_far(c, cell, head, keys, scratch);
}

// ----------------------------------------------------------------------------- before and after

static void pack(const Backward &c, int which, int panel) {
    const Problem &p = c.p;
    const int b = which / p.key_heads, head = which % p.key_heads, first = panel * PANEL;
    const Unit &unit = c.keys_of(b, head);
    const KeySide &side = c.sides[which];
    const ptrdiff_t at = (ptrdiff_t)first * p.dim;
    Problem swapped = p;  // values as keys
    swapped.key = p.value, swapped.value = p.key;
    memcpy(swapped.key_strides, p.value_strides, sizeof p.value_strides);
    memcpy(swapped.value_strides, p.key_strides, sizeof p.key_strides);
    if (first < unit.tokens) {
        const int count = unit.tokens - first;
        pack_panel(p, b, head, unit.start, NULL, first, count, side.near_keys + at, NULL);
        pack_panel(swapped, b, head, unit.start, NULL, first, count, side.near_values + at,
                   side.near_rows ? side.near_rows + at : NULL);
    }
    if (c.far && first < unit.slots) {
        const int *slots = unit.key_at + first;
        pack_panel(p, b, head, unit.start, slots, 0, PANEL, side.far_keys + at, NULL);
        pack_panel(swapped, b, head, unit.start, slots, 0, PANEL, side.far_values + at,
                   side.far_rows + at);
        memset(side.far_d_keys + at, 0, PANEL * p.dim * sizeof(float));
        memset(side.far_d_values + at, 0, PANEL * p.dim * sizeof(float));
    }
}

static void sum_rows(const Backward &c, int b, int head, int first) {  // delta: grad . out
    const Problem &p = c.p;
    const Unit &unit = c.unit[c.unit_of(b, head)];
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

// ---------------------------------------------------------------------------------- further keys

static float *weights_of(const Backward &c, int b, int head, int t) {
    return c.extra_weights + c.state_at(b, head, t) * 2 * c.p.extras;
}

static const int32_t *extra_of(const Backward &c, int b, int t) {
    return c.p.extra + ((size_t)b * c.p.tokens + c.keys_of(b, 0).start + t) * c.p.extras;
}

// The weights of a query's further keys, the gradients of their logits, and the query's gradient.
static void extra_queries(const Backward &c, int b, int head, int t) {
    const Problem &p = c.p;
    const Unit &unit = c.unit[c.unit_of(b, head)];
    const int key_head = c.key_head_of(head);
    const size_t at = c.state_at(b, head, t);
    const int32_t *own = extra_of(c, b, t);
    float query[MOST_DIM], grad[MOST_DIM], key[MOST_DIM], value[MOST_DIM], *weights = weights_of(c, b, head, t);
    float *to = c.head_rows(c.g.d_query, b, head, p.heads) + (ptrdiff_t)t * p.dim;
    memset(weights, 0, 2 * p.extras * sizeof(float));
    bool read = false;
    for (int e = 0; e < p.extras; e++) {
        if (own[e] < 0 || unit.key_groups[own[e] - unit.start] & unit.query_groups[t]) continue;
        if (!read) read_query(c, b, head, t, query, grad), read = true;
        read_row(row_of(p.key, p.key_strides, b, key_head, own[e], c.row_size), p.bfloat16, p.dim, 1, key);
        read_row(row_of(p.value, p.value_strides, b, key_head, own[e], c.row_size), p.bfloat16, p.dim, 1,
                 value);
        Vec score = {}, inner = {};
        for (int d = 0; d < p.dim; d += LANES)
            score += load(query + d) * load(key + d), inner += load(grad + d) * load(value + d);
        weights[2 * e] = exp2f(total(score) - p.lse[at] / LN2);
        weights[2 * e + 1] = weights[2 * e] * (total(inner) - c.delta[at]);
        const float d_logit = weights[2 * e + 1] * p.scale;
        for (int d = 0; d < p.dim; d += LANES) store(to + d, load(to + d) + load(key + d) * d_logit);
    }
}

// The gradients of some keys, a KEY_PARTS-th of a key head's, as further keys.
static void extra_keys(const Backward &c, int b, int key_head, int part) {
    const Problem &p = c.p;
    const Unit &unit = c.keys_of(b, key_head);
    const int size = unit.tokens / KEY_PARTS + 1, shared = p.heads / p.key_heads;
    const int low = unit.start + part * size, high = low + size;
    float query[MOST_DIM], grad[MOST_DIM];
    for (int t = part * size; t < unit.tokens; t++) {  // no query is before its keys
        const int32_t *own = extra_of(c, b, t);
        for (int e = 0; e < p.extras; e++) {
            if (own[e] < low || own[e] >= high) continue;
            const ptrdiff_t at = (ptrdiff_t)(own[e] - unit.start) * p.dim;
            float *d_key = c.head_rows(c.g.d_key, b, key_head, p.key_heads) + at;
            float *d_value = c.head_rows(c.g.d_value, b, key_head, p.key_heads) + at;
            for (int head = key_head * shared; head < (key_head + 1) * shared; head++) {
                const float *weights = weights_of(c, b, head, t) + 2 * e;
                if (weights[0] == 0) continue;
                read_query(c, b, head, t, query, grad);
                for (int d = 0; d < p.dim; d += LANES) {
                    store(d_key + d, load(d_key + d) + load(query + d) * weights[1]);
                    store(d_value + d, load(d_value + d) + load(grad + d) * weights[0]);
                }
            }
        }
    }
}

// -------------------------------------------------------------------------------------- the call

static int run(Backward &c) {
    const Problem &p = c.p;
    const int pairs = p.batch * p.key_heads, tiles = (p.tokens + GRAD_TILE - 1) / GRAD_TILE;
    int panels = 1, failed = 0;
    for (int u = 0; u < c.units; u++)
        panels = max_of(panels, (max_of(c.unit[u].tokens, c.unit[u].slots) + PANEL - 1) / PANEL);
    const size_t scratch_size = (size_t)GRAD_TILE * (3 * p.dim + 2 * BLOCK);
#pragma omp parallel num_threads(p.threads) reduction(| : failed)
    {
        float *scratch = room<float>(scratch_size);
        failed |= !scratch;
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < (int64_t)pairs * panels; i++) pack(c, (int)(i / panels), (int)(i % panels));
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < (int64_t)p.batch * p.heads * tiles; i++)
            sum_rows(c, (int)(i / tiles / p.heads), (int)(i / tiles % p.heads), (int)(i % tiles) * GRAD_TILE);
        for (const std::vector<Cell> &round : c.rounds) {
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
    const Problem &p = problem->forward;
    if (p.dim % LANES || p.dim > MOST_DIM || p.groups > MOST_GROUPS) return UNSUPPORTED;
    int status = NO_MEMORY;
    Backward c(*problem);
    try {
        status = prepare_units(c);
        if (status == DONE) {
            reserve(c), make_cells(c);
            status = run(c);
        }
    } catch (const std::bad_alloc &) {
        status = NO_MEMORY;
    }
    release_units(c);
    return status;
}
