#include "ops/checks.h"

// All schemas, and nothing else. One operator, one file: ops/NAME.cpp checks its arguments and registers it.
STABLE_TORCH_LIBRARY(tarpeg, m) {
  m.def("decode_crop(Tensor jpeg, int top, int left, int height, int width, int max_pixels) -> Tensor");
  m.def("tile_jpeg(Tensor jpeg, int tile, int max_pixels) -> Tensor");
  m.def("pack_jpeg(Tensor jpeg, int tile, int max_pixels) -> Tensor");
  m.def("unpack_jpeg(Tensor image, int max_pixels) -> Tensor");
  m.def("image_sizes(Tensor[] jpegs, Tensor? places=None) -> Tensor");
  m.def("native_facts() -> str");
  m.def(
      "read_masks(Tensor files, Tensor ends, Tensor boxes, Tensor? flip, Tensor? places, Tensor? table, "
      "bool centres, int fill, int max_pixels, Tensor(a!) out, int threads) -> Tensor");
  m.def(
      "fill_outlines(Tensor points, Tensor toggles, Tensor parts, Tensor objects, Tensor counts, "
      "Tensor sizes, Tensor boxes, Tensor flips, Tensor places, bool centres, int height, int width, "
      "Tensor(a!) out, int threads) -> Tensor");
  m.def("unpack_masks(Tensor bits, Tensor(a!) out, int threads) -> ()");
  m.def(
      "scan_objects(Tensor files, Tensor ends, str path, str fields, str image_id) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "decode_batch(Tensor[] jpegs, Tensor boxes, int height, int width, Tensor? flip, str interpolation, "
      "bool antialias, bool exact, int max_pixels, int threads, int channels=3) -> (Tensor, Tensor)");
  m.def(
      "decode_batch_out(Tensor[] jpegs, Tensor boxes, Tensor? flip, str interpolation, bool antialias, "
      "bool exact, int max_pixels, Tensor? scale_shift, Tensor(a!) out, int threads) -> Tensor");
  m.def(
      "decode_sizes_out(Tensor[] jpegs, Tensor boxes, Tensor? flip, str interpolation, bool antialias, "
      "bool exact, int max_pixels, Tensor? scale_shift, Tensor(a!)[] out, int threads, "
      "Tensor? places=None) -> Tensor");
  m.def(
      "gather_tiles(Tensor[] images, Tensor? places, Tensor boxes, int height, int width, Tensor? flip, "
      "str interpolation, bool antialias, bool exact, int max_pixels, int threads, int channels, int budget) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "gather_tiles_out(Tensor[] images, Tensor? places, Tensor boxes, int height, int width, Tensor? flip, "
      "str interpolation, bool antialias, bool exact, int max_pixels, int threads, int channels, "
      "int budget, Tensor(a!) out) -> (Tensor, Tensor)");
  m.def(
      "decode_gathered(Tensor data, int count, int height, int width, int channels, int work, int[] chunks, "
      "int threads) -> (Tensor, Tensor)");
  m.def(
      "warp_affine(Tensor images, Tensor matrices, float[] fill, bool nearest, bool inverse, bool fresh, "
      "Tensor(a!) out) -> ()");
  m.def(
      "run_batch(Tensor images, Tensor? ops, Tensor? values, Tensor? weights, bool nearest, float[] border, "
      "Tensor? numbers, int parts, Tensor? boxes, Tensor? mask, float[] constants, bool fresh, "
      "Tensor(a!) out, int threads) -> ()");
}
