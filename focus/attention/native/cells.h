// Cells of the backward pass: some queries of a list against some of its keys.
//
// A round holds cells of which no two share a query or a key, so that every sum has one writer and
// always the same order: results do not depend on the number of threads.
#pragma once

#include "gradient.h"
#include "lists.h"

struct Cell {
    int b, key_head, group, queries, keys;  // which of the group's parts; group -1: the tokens'
};

typedef std::vector<std::vector<Cell>> Rounds;

// Tokens of a cell's side: fewer in short sequences, so that every thread has some.
static int cell_size(const Problem &p) {
    const int most = 4 * GRAD_TILE, cells = 8;
    return max_of(GRAD_TILE, min_of(most, down(p.tokens / cells, GRAD_TILE)));
}

static void add_near_cells(const Call &c, int size, Rounds &rounds) {
    const Problem &p = c.p;
    const int parts = (p.tokens + size - 1) / size;
    const int back = c.mode == DENSE ? parts - 1 : min_of(parts - 1, (c.window + size - 2) / size);
    for (int r = 0; r <= back; r++) {
        rounds.emplace_back();
        for (int i = parts - 1; i >= r; i--)
            for (int b = 0; b < p.batch; b++)
                for (int head = 0; head < p.key_heads; head++)
                    rounds.back().push_back(Cell{b, head, -1, i, i - r});
    }
}

static void add_far_cells(const Call &c, int size, int first_group, int last_group, Rounds &rounds) {
    const Problem &p = c.p;
    int parts = 0;
    for (const Unit &unit : c.unit)
        for (int g = first_group; g < last_group; g++) {
            parts = max_of(parts, unit.query_offset[g + 1] - unit.query_offset[g]);
            parts = max_of(parts, unit.key_offset[g + 1] - unit.key_offset[g]);
        }
    parts = (parts + size - 1) / size;
    for (int r = 0; r < parts; r++) {
        rounds.emplace_back();
        for (int i = parts - 1; i >= 0; i--)
            for (int b = 0; b < p.batch; b++)
                for (int head = 0; head < p.key_heads; head++)
                    for (int g = first_group; g < last_group; g++)
                        rounds.back().push_back(Cell{b, head, g, i, (i + parts - r) % parts});
    }
}

static Rounds make_cells(const Call &c, int size) {
    Rounds rounds;
    const int groups = c.far ? c.p.groups : 0, together = c.single ? groups : 1;
    for (int g = 0; g < groups; g += together) add_far_cells(c, size, g, g + together, rounds);
    add_near_cells(c, size, rounds);
    return rounds;
}
