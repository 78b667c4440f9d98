// Matrix products of sizes that are known when a step is compiled, for one thread.
//
// A step's products are small: all that one takes fits into the second cache, so there are no levels
// of blocking. A tile of the result is kept in registers while both factors pass by; a row of tiles is
// done before the next, and what follows element by element (a bias, an activation) is done to it
// while it is in the first cache. The left factor is read as it lies, and so is the right one where its
// rows are contiguous; a transposed one is turned first.

#pragma once

#include <cstddef>
#include <cstring>
#include <utility>

namespace repertory {

#if defined(__AVX512F__)
constexpr long LANES = 16, TILE_ROWS = 14;
#elif defined(__AVX__)
constexpr long LANES = 8, TILE_ROWS = 6;
#else
constexpr long LANES = 4, TILE_ROWS = 6;
#endif
constexpr long TILE_LANES = 2 * LANES;  // columns of a tile

typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef float LanesAnywhere
    __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

inline Lanes load(const float* from) { return *reinterpret_cast<const LanesAnywhere*>(from); }
inline void store(float* to, Lanes value) { *reinterpret_cast<LanesAnywhere*>(to) = value; }

// ROWS x (COLUMNS * LANES) of the result.
template <long ROWS, long COLUMNS, long DEPTH, long LEFT_ROW, long LEFT_DEPTH, long RIGHT_DEPTH>
inline void tile(const float* left, const float* right, float* result, long result_row) {
  Lanes sum[ROWS][COLUMNS] = {};
  for (long depth = 0; depth < DEPTH; ++depth) {
    Lanes factor[COLUMNS];
#pragma GCC unroll 2
    for (long c = 0; c < COLUMNS; ++c) factor[c] = load(right + c * LANES);
#pragma GCC unroll 16
    for (long r = 0; r < ROWS; ++r) {
#pragma GCC unroll 2
      for (long c = 0; c < COLUMNS; ++c) sum[r][c] += left[r * LEFT_ROW] * factor[c];
    }
    left += LEFT_DEPTH;
    right += RIGHT_DEPTH;
  }
#pragma GCC unroll 16
  for (long r = 0; r < ROWS; ++r) {
#pragma GCC unroll 2
    for (long c = 0; c < COLUMNS; ++c) store(result + r * result_row + c * LANES, sum[r][c]);
  }
}

template <bool HIGH, std::size_t... I>
inline Lanes interleaved(Lanes a, Lanes b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, ((I % 2 ? LANES : 0) + (HIGH ? LANES / 2 : 0) + I / 2)...);
}

// to[k][n] = from[n][k], for LANES x LANES of them.
inline void turn(const float* from, long from_row, float* to, long to_row) {
  Lanes rows[LANES], other[LANES];
  constexpr auto all = std::make_index_sequence<LANES>();
#pragma GCC unroll 16
  for (long n = 0; n < LANES; ++n) rows[n] = load(from + n * from_row);
#pragma GCC unroll 4
  for (long half = LANES / 2; half > 0; half /= 2) {  // as often as a lane's number has bits
#pragma GCC unroll 8
    for (long n = 0; n < LANES / 2; ++n) {
      other[2 * n] = interleaved<false>(rows[n], rows[n + LANES / 2], all);
      other[2 * n + 1] = interleaved<true>(rows[n], rows[n + LANES / 2], all);
    }
#pragma GCC unroll 16
    for (long n = 0; n < LANES; ++n) rows[n] = other[n];
  }
#pragma GCC unroll 16
  for (long n = 0; n < LANES; ++n) store(to + n * to_row, rows[n]);
}

// Columns of the right factor, DEPTH x width of them, side by side and zeros beyond.
template <long DEPTH, long RIGHT_DEPTH, long RIGHT_COLUMN>
inline void pack(const float* right, long width, float* packed, long packed_row) {
  if constexpr (RIGHT_DEPTH == 1 && DEPTH >= LANES) {
    for (long n = 0; n < width; n += LANES) {
      if (width - n < LANES) {
        for (long k = 0; k < DEPTH; ++k) {
          for (long i = 0; i < LANES; ++i) {
            packed[k * packed_row + n + i] = n + i < width ? right[(n + i) * RIGHT_COLUMN + k] : 0;
          }
        }
        break;
      }
      for (long k = 0; k < DEPTH; k += LANES) {
        // The last ones overlap, where the depth is not a multiple.
        const long at = k + LANES > DEPTH ? DEPTH - LANES : k;
        turn(right + n * RIGHT_COLUMN + at, RIGHT_COLUMN, packed + at * packed_row + n, packed_row);
      }
    }
  } else {
    for (long k = 0; k < DEPTH; ++k) {
      for (long n = 0; n < packed_row; ++n) {
        packed[k * packed_row + n] = n < width ? right[k * RIGHT_DEPTH + n * RIGHT_COLUMN] : 0;
      }
    }
  }
}

// One row of tiles. `packed`: the right factor as panels of TILE_LANES, the last one narrower.
template <long ROWS, long COLUMNS, long DEPTH, long LEFT_ROW, long LEFT_DEPTH, long RIGHT_DEPTH,
          bool PACKED>
inline void tile_row(const float* left, const float* right, const float* packed, float* result) {
  constexpr long FULL = COLUMNS / TILE_LANES * TILE_LANES, REST = COLUMNS - FULL;
  for (long column = 0; column < FULL; column += TILE_LANES) {
    if constexpr (PACKED) {
      tile<ROWS, 2, DEPTH, LEFT_ROW, LEFT_DEPTH, TILE_LANES>(left, packed + column * DEPTH,
                                                             result + column, COLUMNS);
    } else {
      tile<ROWS, 2, DEPTH, LEFT_ROW, LEFT_DEPTH, RIGHT_DEPTH>(left, right + column,
                                                              result + column, COLUMNS);
    }
  }
  if constexpr (REST > 0) {
    constexpr long VECTORS = REST > LANES ? 2 : 1, WIDE = VECTORS * LANES;
    const float* last = packed + (PACKED ? FULL * DEPTH : 0);
    if constexpr (REST == WIDE) {
      tile<ROWS, VECTORS, DEPTH, LEFT_ROW, LEFT_DEPTH, WIDE>(left, last, result + FULL, COLUMNS);
    } else {
      float whole[ROWS * WIDE];
      tile<ROWS, VECTORS, DEPTH, LEFT_ROW, LEFT_DEPTH, WIDE>(left, last, whole, WIDE);
      for (long r = 0; r < ROWS; ++r) {
        std::memcpy(result + r * COLUMNS + FULL, whole + r * WIDE, REST * sizeof(float));
      }
    }
  }
}

// result[ROWS, COLUMNS] = left[ROWS, DEPTH] right[DEPTH, COLUMNS], whose elements are so far apart;
// those of the result are contiguous. `then(from, to)` is called for rows that are done. `packed` has
// room for DEPTH times COLUMNS, rounded up to whole tiles.
template <long ROWS, long COLUMNS, long DEPTH, long LEFT_ROW, long LEFT_DEPTH, long RIGHT_DEPTH,
          long RIGHT_COLUMN, class Then>
inline void product(const float* left, const float* right, float* result, float* packed,
                    Then then) {
  if constexpr (COLUMNS == 1) {
    if constexpr (LEFT_ROW == 1 && ROWS > 1) {
      for (long r = 0; r < ROWS; ++r) result[r] = 0;
      for (long k = 0; k < DEPTH; ++k) {
        const float factor = right[k * RIGHT_DEPTH];
#pragma GCC ivdep
        for (long r = 0; r < ROWS; ++r) result[r] += left[k * LEFT_DEPTH + r] * factor;
      }
    } else {
      for (long r = 0; r < ROWS; ++r) {
        float sum = 0;
        for (long k = 0; k < DEPTH; ++k) {
          sum += left[r * LEFT_ROW + k * LEFT_DEPTH] * right[k * RIGHT_DEPTH];
        }
        result[r] = sum;
      }
    }
    then(0, ROWS);
    return;
  } else {
    constexpr bool PACKED = RIGHT_COLUMN != 1;
    constexpr long FULL = COLUMNS / TILE_LANES * TILE_LANES, REST = COLUMNS - FULL;
    constexpr long WIDE = REST > LANES ? TILE_LANES : LANES;
    if constexpr (PACKED) {
      for (long column = 0; column < FULL; column += TILE_LANES) {
        pack<DEPTH, RIGHT_DEPTH, RIGHT_COLUMN>(right + column * RIGHT_COLUMN, TILE_LANES,
                                               packed + column * DEPTH, TILE_LANES);
      }
    }
    if constexpr (REST > 0) {
      pack<DEPTH, RIGHT_DEPTH, RIGHT_COLUMN>(right + FULL * RIGHT_COLUMN, REST,
                                             packed + (PACKED ? FULL * DEPTH : 0), WIDE);
    }
    constexpr long BLOCKS = (ROWS + TILE_ROWS - 1) / TILE_ROWS;
    constexpr long LOW = ROWS / BLOCKS, HIGHER = ROWS % BLOCKS;  // so many have a row more
    long row = 0;
    for (long block = 0; block < HIGHER; ++block, row += LOW + 1) {
      tile_row<LOW + 1, COLUMNS, DEPTH, LEFT_ROW, LEFT_DEPTH, RIGHT_DEPTH, PACKED>(
          left + row * LEFT_ROW, right, packed, result + row * COLUMNS);
      then(row, row + LOW + 1);
    }
    for (; row < ROWS; row += LOW) {
      tile_row<LOW, COLUMNS, DEPTH, LEFT_ROW, LEFT_DEPTH, RIGHT_DEPTH, PACKED>(
          left + row * LEFT_ROW, right, packed, result + row * COLUMNS);
      then(row, row + LOW);
    }
  }
}

}  // namespace repertory
