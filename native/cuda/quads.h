#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/launch.h"
#include "ops/batch_checks.h"

// How images are divided among threads: each takes a quad, four pixels of a row that begin at a multiple of
// four, and so never cross a span. Images are the grid's second dimension.
namespace tarpeg {

constexpr int kThreads = 256;
constexpr int64_t kMostImages = 65535;  // in one launch

struct Quad {
  int64_t x, y;
  int n;  // pixels, 1 to 4; 0 beyond the image
};

inline int64_t blocks_of(const BatchLayout& to) {
  const int64_t quads = (to.width + 3) / 4 * to.height, blocks = (quads + kThreads - 1) / kThreads;
  STD_TORCH_CHECK(blocks < (int64_t{1} << 31), "out is too large for a GPU: ", to.height, " x ", to.width);
  return blocks;
}

// Runs kernel(job, first) with `blocks` blocks for each of `count` images, as many as one launch can have.
template <class Job>
void launch_images(void (*kernel)(Job, int64_t), int64_t blocks, int64_t count, const Stream& stream,
                   const char* name, const Job& job) {
  for (int64_t first = 0; first < count; first += kMostImages) {
    const dim3 grid(static_cast<unsigned>(blocks),
                    static_cast<unsigned>(std::min(kMostImages, count - first)));
    launch(kernel, grid, kThreads, stream, name, job, first);
  }
}

TARPEG_DEVICE Quad quad_of(const BatchLayout& to) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x, per_row = (to.width + 3) / 4;
  // A division of 64 bits takes tens of instructions.
  const bool is_small = per_row * to.height < (int64_t{1} << 32);
  const int64_t y =
      is_small ? int64_t{static_cast<uint32_t>(index) / static_cast<uint32_t>(per_row)} : index / per_row;
  const int64_t x = 4 * (index - y * per_row), left = to.width - x;
  return {x, y, y >= to.height ? 0 : left < 4 ? static_cast<int>(left) : 4};
}

// Four numbers as one access to memory.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T values[4];
};

template <class T>
TARPEG_DEVICE bool is_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(Four<T>) == 0;
}

template <class T>
TARPEG_DEVICE void put_four(T* out, float a, float b, float c, float d) {
  const Four<T> four = {{number_from<T>(a), number_from<T>(b), number_from<T>(c), number_from<T>(d)}};
  if (is_aligned(out)) {
    *reinterpret_cast<Four<T>*>(out) = four;
  } else {
    TARPEG_UNROLL for (int i = 0; i < 4; ++i) out[i] = four.values[i];
  }
}

// The channels of a quad, three or, of gray, the first; out: its image. Loops over v are unrolled everywhere,
// so that it stays in registers.
template <class T>
TARPEG_DEVICE void put_rgb(T* out, const BatchLayout& to, const Quad& quad, const float (&v)[3][4]) {
  const int64_t pixel = quad.y * to.width + quad.x;
  if (quad.n < 4) {
    TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
      if (i >= quad.n) break;
      TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
        if (c == to.channels) break;
        out[c * to.channel_stride() + (pixel + i) * to.pixel_stride()] = number_from<T>(v[c][i]);
      }
    }
  } else if (to.planar) {
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) {
      if (c == to.channels) break;
      put_four(out + c * to.pixels() + pixel, v[c][0], v[c][1], v[c][2], v[c][3]);
    }
  } else {
    T* at = out + 3 * pixel;
    put_four(at, v[0][0], v[1][0], v[2][0], v[0][1]);
    put_four(at + 4, v[1][1], v[2][1], v[0][2], v[1][2]);
    put_four(at + 8, v[2][2], v[0][3], v[1][3], v[2][3]);
  }
}

// The warped values of a quad, of three channels.
template <class T>
TARPEG_DEVICE void fetch_warped(const Picture<T>& from, const Affine& map, bool nearest, const float* fill,
                                const Quad& quad, float (&v)[3][4]) {
  const int offset = static_cast<int>(quad.x % kSpan);
  const Span span = span_at(map, quad.x - offset, quad.y, nearest ? 0.5f : 0.0f);
  TARPEG_UNROLL for (int i = 0; i < 4; ++i) {
    const Place place = place_in(span, offset + i);
    const float inside = inside_of(from.width, from.height, place);
    TARPEG_UNROLL for (int c = 0; c < 3; ++c) v[c][i] = sampled(from, c, place, inside, nearest, fill[c]);
  }
}

}  // namespace tarpeg
