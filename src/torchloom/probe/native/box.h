// The black box as the recorder writes it: groups, records, and the one word of a record that changes later.
//
// Offsets and flags come from layout.h, which the build generates from torchloom/wire/blackbox.py.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "layout.h"

namespace loom {
namespace {

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

void put(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

uint64_t add_one(uint64_t* word) {
  return __atomic_add_fetch(word, 1, __ATOMIC_RELAXED);
}

uint64_t mixed(const uint64_t* words, int count) {
  uint64_t h = 0x9E3779B97F4A7C15ull;
  for (int i = 0; i < count; ++i) {
    h = (h ^ words[i]) * 0xFF51AFD7ED558CCDull;
    h ^= h >> 32;
  }
  return h ? h : 1;
}

uint64_t key_of(const std::string& name) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001B3ull;
  return h ? h : 1;
}

// How long a backend waits before it gives up by itself, in ms; 0 when it does not say.
template <typename P>
uint64_t group_timeout_ms(const P& pg) noexcept {
  try {
    if constexpr (requires { pg.getDefaultBackend()->getBackendOptions()->timeout; }) {
      const auto options = pg.getDefaultBackend()->getBackendOptions();
      if (options && options->timeout.count() > 0) return static_cast<uint64_t>(options->timeout.count());
    }
  } catch (...) {  // not every backend has options
  }
  return 0;
}

struct Box;

// A process group of this incarnation. Never freed: completions arrive whenever they like.
struct Group {
  Box* box;
  uint64_t key;
  uint64_t size;
  uint64_t* entered;   // in the group table, or `spare` when the table is full
  uint64_t* finished;
  uint64_t spare[2] = {0, 0};
  std::vector<uint64_t> pairs;  // operations sent to peer i at 2i, received from it at 2i + 1
};

// The mapped black box with what belongs to it in this process. Never freed, for the same reason.
struct Box {
  static constexpr size_t kGroups = 1024;  // a power of two

  explicit Box(uint64_t* mapped) : words(mapped) {}

  uint64_t* progress(uint64_t index) { return words + layout::PROGRESS_AT / 8 + index; }
  uint64_t* slot(uint64_t seq) {
    return words + layout::COLLECTIVES_AT / 8 +
        (seq - 1) % layout::COLLECTIVE_SLOTS * layout::COLLECTIVE_WORDS;
  }

  // Null when there are more groups than we can number: the record then says 0, "unknown".
  Group* group(const c10d::ProcessGroup& pg) {
    const std::string& name = pg.getGroupName();
    const uint64_t key = key_of(name);
    for (size_t i = 0; i < kGroups; ++i) {
      Group* found = groups[(key + i) % kGroups].load(std::memory_order_acquire);
      if (found == nullptr) return add_group(pg, name, key);
      if (found->key == key) return found;
    }
    return nullptr;
  }

  uint64_t* words;
  std::atomic<uint64_t> last_step{0};  // of the newest collective on a device
  std::atomic<Group*> groups[kGroups] = {};
  std::mutex adding;
  uint64_t table_used = 0;

 private:
  Group* add_group(const c10d::ProcessGroup& pg, const std::string& name, uint64_t key) {
    std::lock_guard<std::mutex> lock(adding);
    for (size_t i = 0; i < kGroups; ++i) {
      auto& place = groups[(key + i) % kGroups];
      Group* found = place.load(std::memory_order_relaxed);
      if (found != nullptr && found->key == key) return found;
      if (found != nullptr) continue;
      auto* group = new Group{this, key, static_cast<uint64_t>(pg.getSize()), nullptr, nullptr, {0, 0}, {}};
      group->pairs.resize(2 * group->size);
      group->entered = &group->spare[0];
      group->finished = &group->spare[1];
      if (table_used < layout::GROUP_SLOTS) show(*group, pg, name);
      place.store(group, std::memory_order_release);
      return group;
    }
    return nullptr;
  }

  void show(Group& group, const c10d::ProcessGroup& pg, const std::string& name) {
    uint64_t* slot = words + layout::GROUPS_AT / 8 + table_used++ * layout::GROUP_WORDS;
    const size_t length = std::min<size_t>(name.size(), layout::GROUP_NAME_BYTES);
    put(slot + layout::GROUP_KEY, 0);
    std::memcpy(slot + layout::GROUP_NAME, name.data(), length);
    const uint64_t timeout = std::min<uint64_t>(group_timeout_ms(pg), (1ull << 47) - 1);
    put(slot + layout::GROUP_NAME_LENGTH, length | timeout << layout::TIMEOUT_SHIFT);
    put(slot + layout::GROUP_SIZE, group.size | static_cast<uint64_t>(pg.getRank()) << 32);
    group.entered = slot + layout::GROUP_ENTERED;
    group.finished = slot + layout::GROUP_FINISHED;
    put(group.entered, 0);
    put(group.finished, 0);
    __atomic_store_n(slot + layout::GROUP_KEY, group.key, __ATOMIC_RELEASE);
  }
};

std::atomic<Box*> recording{nullptr};  // null: every kernel only redispatches

// One operation under way. Small enough (two words) for std::function to hold it without an allocation.
// Every change of the completion word is a compare-and-set from the value that carries this record's number,
// so a completion that comes after the slot was reused changes nothing.
struct Entry {
  Group* group;
  uint64_t seq : 62;
  uint64_t paired : 1;

  uint64_t pending(uint64_t source) const {
    return layout::IN_FLIGHT | seq << layout::TIME_SHIFT | source << 1;
  }
  bool change(uint64_t expected, uint64_t value) const {
    uint64_t* word = group->box->slot(seq) + layout::COMPLETION;
    return __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  }
  // When the device came to the operation: a word of its own with the same rules, 0 when that is not watched.
  uint64_t approaching() const { return layout::IN_FLIGHT | seq << layout::TIME_SHIFT; }
  bool arrive_at(uint64_t time) const {
    uint64_t* word = group->box->slot(seq) + layout::ARRIVAL;
    uint64_t expected = approaching();
    return __atomic_compare_exchange_n(
        word, &expected, time << layout::TIME_SHIFT, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  }
  // It is the oldest of its group that the device has not finished.
  void head_at(uint64_t time) const {
    uint64_t* slot = group->box->slot(seq);
    if (*slot == seq) put(slot + layout::HEAD, time);
  }
  // Its end, which was expected from the device, will not be known.
  void forget() const { change(pending(layout::DEVICE_EVENT), pending(layout::NONE)); }
  // From now on the completion will come from `source` (NONE: it will never be known).
  void expect(uint64_t source) const { change(pending(layout::HOST_WAIT), pending(source)); }

  void end(uint64_t source, bool failed) const { end_at(now_ns(), source, failed); }

  void end_at(uint64_t now, uint64_t source, bool failed) const {
    change(pending(source), now << layout::TIME_SHIFT | source << 1 | (failed ? 1 : 0));
    add_one(group->box->progress(layout::PROGRESS_COLLECTIVES_FINISHED));
    if (!paired) add_one(group->finished);
    if (failed) {
      put(group->box->progress(layout::PROGRESS_COLLECTIVE_FAILED_SEQ), seq);
      add_one(group->box->progress(layout::PROGRESS_COLLECTIVES_FAILED));
    }
    uint64_t* activity = group->box->progress(layout::PROGRESS_LAST_ACTIVITY_NS);
    if (now > *activity) put(activity, now);
  }
};

}  // namespace
}  // namespace loom
