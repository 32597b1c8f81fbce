#include "tuning/tune.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

namespace tutti::tuning {

namespace {

// Where the search begins: sockets.
constexpr double kMessageUs = 3;
constexpr double kMessageGbPerS = 3;

constexpr double kNear = 1.3;

// What a core copies is fitted for calls of these sizes; both their buffers count.
constexpr double kCopyingBytes[] = {8 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20};

constexpr double kCrowdBytes = 32 << 20;

constexpr std::size_t kShortBytes = 32 << 10;  // in which the messages count, and not their bytes

/// A cost of the table that is fitted, and between which bounds.
struct FittedCost {
  double* value;
  Parameter parameter;
};

bool shares_hosts(const Place& place) {
  std::set<int> taken;
  const std::vector<topology::Place>& ranks = place.topology.ranks;
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const topology::Place& rank) { return !taken.insert(rank.host).second; });
}

std::vector<FittedCost> fitted_costs(planner::Table& table, const Place& place, bool crowd_alone) {
  std::vector<FittedCost> all;
  const auto fit_within = [&](double& value, double least, double most) {
    all.push_back({&value, {value, least, most}});
  };
  planner::Constants& constants = table.constants;
  if (topology::ranks_share_cores(place.topology)) fit_within(constants.switch_us, 0.1, 100);
  if (crowd_alone) {
    fit_within(constants.copying.back().gb_per_s, 0.1, 500);
    return all;
  }
  const bool many_hosts = place.topology.hosts.size() > 1;
  if (!many_hosts) {  // between hosts a measurement cannot tell them from what a message takes
    fit_within(constants.call_us, 0.01, 50);
    fit_within(constants.step_us, 0.002, 5);
  }
  if (shares_hosts(place)) {
    fit_within(table.signal_us, 0.02, 20);
    fit_within(constants.reduce_gb_per_s, 0.1, 500);
    fit_within(constants.slot_reuse_gb_per_s, 0.1, 500);
  }
  for (planner::Copying& one : constants.copying) fit_within(one.gb_per_s, 0.1, 500);
  if (many_hosts) {
    fit_within(constants.put_us, 0.05, 100);
    fit_within(constants.message_us, 0.02, 100);
    fit_within(constants.message_gb_per_s, 0.01, 1000);
    fit_within(table.network_us, 0.5, 10000);
    fit_within(table.network_gb_per_s, 0.001, 1000);
  }
  return all;
}

planner::Table assumed_table(const Place& place) {
  planner::Table table;
  const topology::Assumed assumed;
  table.ranks = static_cast<int>(place.topology.ranks.size());
  table.signal_us = 2 * (assumed.core_latency_us + assumed.cache_latency_us);
  for (const double bytes : kCopyingBytes) table.constants.copying.push_back({bytes, assumed.core_gb_per_s});
  if (shares_hosts(place))
    table.constants.reduce_gb_per_s = table.constants.slot_reuse_gb_per_s = assumed.core_gb_per_s;
  if (place.topology.hosts.size() > 1) {
    table.constants.message_us = kMessageUs;
    table.constants.message_gb_per_s = kMessageGbPerS;
    table.network_us = 2 * topology::kNetworkLatencyUs;
    table.network_gb_per_s = topology::kNetworkGbPerS;
    if (topology::ranks_share_cores(place.topology)) {
      table.constants.switch_us = planner::kSharedSwitchUs;
      table.constants.message_gb_per_s = planner::kSharedMessageGbPerS;
      table.network_us = kMessageUs + planner::kWakeUs;
    }
  }
  return table;
}

}  // namespace

Result<int> measure_all(TuttiCommunicator& communicator, std::vector<Case>& cases, const OnCase& on_case,
                        const IsSpent& is_spent) {
  std::size_t number = 0;
  for (int pass = 1; pass <= kPasses; ++pass) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      // Every other pass backwards: a case that leaves both ranks on one core does so to another one each time.
      Case& one = cases[pass % 2 == 1 ? i : cases.size() - 1 - i];
      TUTTI_TRY(measure(communicator, one));
      if (communicator.rank() == 0) on_case(one, ++number, kPasses * cases.size());
    }
    // All end together.
    TUTTI_ASSIGN(const double spent, largest(communicator, is_spent && is_spent() ? 1 : 0));
    if (spent > 0) return pass;
  }
  return kPasses;
}

std::vector<Case> cases_to_tune(const Place& place) {
  std::vector<Case> cases = cases_of({Collective::all_reduce, Collective::all_gather, Collective::broadcast});
  if (place.topology.hosts.size() == 1 || place.topology.ranks.size() == 2) return cases;
  for (Case one : cases_of({Collective::all_gather})) {
    one.asked = "linear";
    if (one.bytes <= kShortBytes) cases.push_back(one);
  }
  return cases;
}

std::vector<Case> cases_to_compare() {
  return cases_of({Collective::all_reduce, Collective::all_gather, Collective::broadcast, Collective::reduce_scatter,
                   Collective::all_to_all});
}

Result<Costs> table_for(const std::vector<Case>& cases, const Place& place, const planner::Table* known,
                        const IsSpent& is_spent) {
  const bool shares_cores = topology::ranks_share_cores(place.topology);
  const bool crowd_alone =
      known != nullptr && !known->constants.copying.empty() && place.topology.hosts.size() == 1 && shares_cores;
  planner::Table table = crowd_alone ? *known : assumed_table(place);
  if (known != nullptr) table.constants.switch_us = known->constants.switch_us;
  if (shares_cores) {
    // Cores that several ranks share work on more than has been measured without.
    std::vector<planner::Copying>& copying = table.constants.copying;
    if (copying.back().bytes < kCrowdBytes) copying.push_back({kCrowdBytes, copying.back().gb_per_s});
  }
  const std::vector<FittedCost> fitted = fitted_costs(table, place, crowd_alone);
  std::vector<Parameter> parameters;
  for (const FittedCost& one : fitted) parameters.push_back(one.parameter);
  Status status;
  const auto set = [&](const std::vector<double>& values) {
    for (std::size_t i = 0; i < fitted.size(); ++i) *fitted[i].value = values[i];
  };
  // The mean of how far off a ratio is, so that one odd measurement does not pull all; and a little for being far from
  // what is assumed, which decides where the cases do not.
  const auto error_of = [&](const std::vector<double>& values) {
    set(values);
    const Result<std::vector<double>> predicted = predicted_us(cases, place, table);
    if (!predicted.ok()) {
      status = predicted.status();
      return std::numeric_limits<double>::infinity();
    }
    double error = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double off = std::log(predicted.value()[i] / cases[i].measured_us);
      error += std::sqrt(off * off + 0.01) / static_cast<double>(cases.size());
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      error += 0.002 * std::abs(std::log(values[i] / parameters[i].value)) / static_cast<double>(values.size());
    }
    return error;
  };
  const Fit found = fit(parameters, error_of, is_spent);
  set(found.values);
  TUTTI_TRY(status);
  return Costs{std::move(table), found.in_full};
}

bool is_near(double predicted_us, double measured_us) {
  return predicted_us <= measured_us * kNear && predicted_us >= measured_us / kNear;
}

}  // namespace tutti::tuning
