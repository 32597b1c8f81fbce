// Synthetic images, made from a seed: digits in MNIST's size, coloured shapes in CIFAR-10's.
//
//   write_mnist(synthetic_digits(10'000, 1), "train-images-idx3-ubyte", "train-labels-idx1-ubyte");
//   write_cifar10(synthetic_shapes(10'000, 1), "data_batch_1.bin");
//
// Image i depends on (seed, i) alone: a larger count begins with the same images, and another seed gives a test set.
// Each image has a random shift, scale, rotation, stroke or edge, colours (shapes) and noise. The label is random.
// Only +, -, *, / and square roots are used, so machines that round as IEEE 754 says make the same bytes, as long as
// the compiler fuses no products into sums.
#pragma once

#include <cstdint>

#include "training/data/images.h"

namespace tutti::training {

/// Returns images of 1 x 28 x 28: the digits 0 to 9, light on dark, in strokes. The label is the digit.
Images synthetic_digits(std::int64_t count, std::uint64_t seed);

/// Returns images of 3 x 32 x 32: disc, ring, square, frame, triangle, plus, X, bars that lie, bars that stand,
/// chequers, in two colours. The label is the place in this list.
Images synthetic_shapes(std::int64_t count, std::uint64_t seed);

}  // namespace tutti::training
