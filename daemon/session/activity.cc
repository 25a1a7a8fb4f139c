#include "daemon/session/activity.h"

#include <algorithm>

namespace kvist::session {

const char* NameOf(Hook hook) {
  switch (hook) {
    case Hook::kLookup: return "lookup";
    case Hook::kLoad: return "load";
    case Hook::kStore: return "store";
    case Hook::kSwapOut: return "swap_out";
    case Hook::kSwapIn: return "swap_in";
    case Hook::kPin: return "pin";
    case Hook::kUnpin: return "unpin";
    case Hook::kAllocate: return "allocate";
    case Hook::kFlush: return "flush";
    case Hook::kWhere: return "where";
  }
  return "";
}

const char* NameOf(Queue queue) {
  switch (queue) {
    case Queue::kRing: return "ring";
    case Queue::kCopyLoad: return "copy_load";
    case Queue::kCopyStore: return "copy_store";
  }
  return "";
}

Traffic& Traffic::operator+=(const Traffic& other) {
  lookups_hit += other.lookups_hit;
  lookups_partial += other.lookups_partial;
  lookups_missed += other.lookups_missed;
  chunks_asked += other.chunks_asked;
  chunks_hit += other.chunks_hit;
  chunks_loaded += other.chunks_loaded;
  chunks_stored += other.chunks_stored;
  chunks_skipped += other.chunks_skipped;
  chunks_refused += other.chunks_refused;
  bytes_loaded += other.bytes_loaded;
  bytes_stored += other.bytes_stored;
  bytes_swapped_in += other.bytes_swapped_in;
  bytes_swapped_out += other.bytes_swapped_out;
  for (size_t hook = 0; hook < kHooks; ++hook) {
    failed[hook] += other.failed[hook];
    late[hook] += other.late[hook];
  }
  return *this;
}

Activity::Activity(const std::vector<std::string>& tenants) {
  std::vector<std::string> names = tenants;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (std::string& name : names) {
    if (name != kOther) ended_.tenants.emplace_back(std::move(name), Traffic());
  }
  ended_.tenants.emplace_back(kOther, Traffic());
}

void Activity::Name(const std::vector<std::string>& tenants, size_t most) {
  auto& rows = ended_.tenants;
  for (const std::string& name : tenants) {
    const auto same = [&](const auto& row) { return row.first == name; };
    if (rows.size() > most || std::any_of(rows.begin(), rows.end(), same)) continue;
    const auto behind = std::find_if(rows.begin(), rows.end() - 1, [&](const auto& row) { return row.first > name; });
    rows.emplace(behind, name, Traffic());
  }
}

void Activity::Ended(std::string_view tenant, SpaceId space, const Traffic& traffic) { ended_.Add(tenant, space, traffic); }

void Activity::Rows::Add(std::string_view tenant, SpaceId space, const Traffic& traffic) {
  const auto row =
      std::find_if(tenants.begin(), tenants.end() - 1, [&](const auto& named) { return named.first == tenant; });
  row->second += traffic;
  if (spaces.size() <= space.value) spaces.resize(space.value + 1);
  spaces[space.value] += traffic;
}

Traffic Activity::Rows::Total() const {
  Traffic total;
  for (const auto& [name, traffic] : tenants) total += traffic;
  return total;
}

}  // namespace kvist::session
