// A plan as a picture: ranks down, time along, a box for each step that moves or reduces data, arrows for what crosses
// from rank to rank.
#pragma once

#include <string>

#include "collectives/plan/plan.h"

namespace tutti::cli {

/// The SVG document of one round. A put, copy or reduce takes one unit of time, signals take none; waits last until
/// their signal has come. REQUIRES: verify(plan) is ok.
std::string svg_of(const plan::Plan& plan);

}  // namespace tutti::cli
