// Products with the gradient of a single output through a ReLU, from a quarter of the additions.
//
// Where a network ends in one number, the gradient at its last hidden layer is row[r] * depth[k], or
// nothing where the ReLU was closed. A product with it has no factors of its own left once `depth` is
// in the other one: every row of the result is a sum of those rows of it whose gate is open. So all
// 16 sums of four neighbouring rows are written down first, and a row of the result needs one
// addition for the four of them ("the method of the four Russians"). The numbers are float32, the terms
// those of the plain product, and what is closed adds an exact zero.

#pragma once

#include <cstdint>

#include "products.h"

namespace repertory {

constexpr long AT_ONCE = 4, SUMS = 1 << AT_ONCE;  // rows that are summed, and their sums: a table
constexpr long TABLES = 8, TABLE_COLUMNS = 64;    // as many as the first cache has room for

constexpr long tables_of(long depth) { return (depth + AT_ONCE - 1) / AT_ONCE; }

// For each row and table the sum that it takes: bit i is open gate i. Rows or tables are neighbours,
// whichever are so in `gate`.
template <long ROWS, long DEPTH, long GATE_ROW, long GATE_DEPTH>
inline void write_picks(const float* gate, uint8_t* picks) {
  constexpr long COUNT = tables_of(DEPTH);
  if constexpr (GATE_ROW == 1) {
    for (long t = 0; t < COUNT; ++t) {
      const float* at = gate + t * AT_ONCE * GATE_DEPTH;
      uint8_t* to = picks + t * ROWS;
      const long open = DEPTH - t * AT_ONCE < AT_ONCE ? DEPTH - t * AT_ONCE : AT_ONCE;
      for (long r = 0; r < ROWS; ++r) to[r] = !(at[r] <= 0);
      for (long i = 1; i < open; ++i) {
        for (long r = 0; r < ROWS; ++r) to[r] |= !(at[i * GATE_DEPTH + r] <= 0) << i;
      }
    }
  } else {
    alignas(64) uint8_t open[COUNT * AT_ONCE] = {};
    for (long r = 0; r < ROWS; ++r) {
      for (long k = 0; k < DEPTH; ++k) open[k] = !(gate[r * GATE_ROW + k * GATE_DEPTH] <= 0);
      for (long t = 0; t < COUNT; ++t) {
        uint32_t four;
        std::memcpy(&four, open + t * AT_ONCE, AT_ONCE);
        picks[r * COUNT + t] = four * 0x01020408u >> 24;  // four bytes of 0 or 1 to four bits
      }
    }
  }
}

// table[n] = the sum of those of four rows whose bits are set in n.
template <long VECTORS>
inline void write_table(const float* rows, long stride, long count, const float* factor,
                        long factor_stride, float (*table)[TABLE_COLUMNS]) {
  for (long c = 0; c < VECTORS; ++c) {
    Lanes sums[SUMS];
    sums[0] = Lanes{};
#pragma GCC unroll 4
    for (long i = 0; i < AT_ONCE; ++i) {
      const Lanes row = i < count ? load(rows + i * stride + c * LANES) * factor[i * factor_stride]
                                  : Lanes{};
#pragma GCC unroll 8
      for (long n = 0; n < 1 << i; ++n) sums[(1 << i) + n] = sums[n] + row;
    }
#pragma GCC unroll 16
    for (long n = 0; n < SUMS; ++n) store(table[n] + c * LANES, sums[n]);
  }
}

// One panel of the result: VECTORS * LANES of its columns.
template <long VECTORS, long ROWS, long DEPTH, long PICK_ROW, long PICK_TABLE, long ROW_FACTOR,
          long DEPTH_FACTOR>
inline void gated_panel(const uint8_t* picks, const float* row_factor, const float* depth_factor,
                        const float* right, long right_row, float* result, long result_row) {
  constexpr long COUNT = tables_of(DEPTH);
  alignas(64) float tables[TABLES][SUMS][TABLE_COLUMNS];
  for (long first = 0; first < COUNT; first += TABLES) {
    const long here = COUNT - first < TABLES ? COUNT - first : TABLES;
    for (long t = 0; t < here; ++t) {
      const long k = (first + t) * AT_ONCE;
      write_table<VECTORS>(right + k * right_row, right_row, DEPTH - k,
                           depth_factor + k * DEPTH_FACTOR, DEPTH_FACTOR, tables[t]);
    }
    const bool last = first + TABLES >= COUNT;
    const auto add = [&](long many) __attribute__((always_inline)) {
      for (long r = 0; r < ROWS; ++r) {
        const uint8_t* pick = picks + r * PICK_ROW + first * PICK_TABLE;
        Lanes sum[VECTORS];
#pragma GCC unroll 16
        for (long c = 0; c < VECTORS; ++c) {
          sum[c] = first ? load(result + r * result_row + c * LANES) : Lanes{};
        }
#pragma GCC unroll 8
        for (long t = 0; t < many; ++t) {
          const float* row = tables[t][pick[t * PICK_TABLE]];
#pragma GCC unroll 16
          for (long c = 0; c < VECTORS; ++c) sum[c] += load(row + c * LANES);
        }
        const float factor = last ? row_factor[r * ROW_FACTOR] : 1.0f;
#pragma GCC unroll 16
        for (long c = 0; c < VECTORS; ++c) store(result + r * result_row + c * LANES, sum[c] * factor);
      }
    };
    if (here == TABLES) {
      add(TABLES);
    } else {
      add(here);
    }
  }
}

// result[r, c] = row[r] * (sum over k of depth[k] * right[k, c] where gate[r, k] is open), or result[c, r]
// where it is TURNED. COLUMNS are whole vectors, and so are ROWS of a result that is turned.
// `then(from, to)` is called for rows of the result that are done. `room`: (ROWS + DEPTH) * TABLE_COLUMNS
// floats, and a byte for each pick.
template <long ROWS, long COLUMNS, long DEPTH, long GATE_ROW, long GATE_DEPTH, long ROW_FACTOR,
          long DEPTH_FACTOR, long RIGHT_DEPTH, long RIGHT_COLUMN, bool TURNED, class Then>
inline void gated_product(const float* gate, const float* row_factor, const float* depth_factor,
                          const float* right, float* result, float* room, Then then) {
  static_assert(COLUMNS % LANES == 0 && (ROWS % LANES == 0 || !TURNED));
  constexpr long COUNT = tables_of(DEPTH);
  constexpr long PICK_ROW = GATE_ROW == 1 ? 1 : COUNT, PICK_TABLE = GATE_ROW == 1 ? ROWS : 1;
  float* const packed = room;
  float* const panel = packed + DEPTH * TABLE_COLUMNS;
  uint8_t* const picks = reinterpret_cast<uint8_t*>(panel + ROWS * TABLE_COLUMNS);
  write_picks<ROWS, DEPTH, GATE_ROW, GATE_DEPTH>(gate, picks);
  const auto columns = [&]<long WIDTH>(long column) {
    const float* from = right + column * RIGHT_COLUMN;
    long from_row = RIGHT_DEPTH;
    if constexpr (RIGHT_COLUMN != 1) {
      pack<DEPTH, RIGHT_DEPTH, RIGHT_COLUMN>(from, WIDTH, packed, WIDTH);
      from = packed;
      from_row = WIDTH;
    }
    gated_panel<WIDTH / LANES, ROWS, DEPTH, PICK_ROW, PICK_TABLE, ROW_FACTOR, DEPTH_FACTOR>(
        picks, row_factor, depth_factor, from, from_row, TURNED ? panel : result + column,
        TURNED ? WIDTH : COLUMNS);
    if constexpr (TURNED) {
      for (long c = 0; c < WIDTH; c += LANES) {
        for (long r = 0; r < ROWS; r += LANES) {
          turn(panel + r * WIDTH + c, WIDTH, result + (column + c) * ROWS + r, ROWS);
        }
      }
      then(column, column + WIDTH);
    }
  };
  constexpr long FULL = COLUMNS / TABLE_COLUMNS * TABLE_COLUMNS;
  for (long column = 0; column < FULL; column += TABLE_COLUMNS) {
    columns.template operator()<TABLE_COLUMNS>(column);
  }
  if constexpr (FULL < COLUMNS) columns.template operator()<COLUMNS - FULL>(FULL);
  if constexpr (!TURNED) then(0, ROWS);
}

}  // namespace repertory
