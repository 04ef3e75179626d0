// The native collective recorder: a boxed kernel on BackendSelect for every c10d operator we know.
//
// It writes a record into the black box, redispatches with the arguments untouched, and learns of the
// completion from the work's own future, on the backend's thread. It never needs the GIL, starts no thread
// and throws nothing of its own: what goes wrong here is counted and training goes on.
//
// It knows nothing of Python. Offsets, operators and flags come from layout.h, which the build generates from
// torchloom/wire/blackbox.py and torchloom/probe/operations.py, so that there is one definition of each.
//
// It has more than 400 lines because it is compiled as one file, with nothing to find but the header above.

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include "layout.h"

namespace loom {
namespace {

using Stack = torch::jit::Stack;

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
  // From now on the completion will come from `source` (NONE: it will never be known).
  void expect(uint64_t source) const { change(pending(layout::HOST_WAIT), pending(source)); }

  void end(uint64_t source, bool failed) const {
    const uint64_t now = now_ns();
    change(pending(source), now << layout::TIME_SHIFT | source << 1 | (failed ? 1 : 0));
    add_one(group->box->progress(layout::PROGRESS_COLLECTIVES_FINISHED));
    if (!paired) add_one(group->finished);
    put(group->box->progress(layout::PROGRESS_LAST_ACTIVITY_NS), now);
  }
};

// Questions that not every torch can answer; templates, so that only those that exist are compiled.
template <typename W>
c10::intrusive_ptr<c10::ivalue::Future> future_result(W& work) {
  if constexpr (requires { work.getFutureResult(); }) return work.getFutureResult();
  return nullptr;
}
template <typename W>
std::chrono::milliseconds timeout_of(const W& work) {
  if constexpr (requires { work.getTimeout(); }) return work.getTimeout();
  return kNoTimeout;
}
template <typename W>
uint64_t completion_key(const W& work) {
  if constexpr (requires { work.getCompletionKey(); }) return work.getCompletionKey();
  return 0;
}
template <typename W>
void block_current_stream(W& work) {
  if constexpr (requires { work.blockCurrentStream(); }) work.blockCurrentStream();
}

// Stands in for a work that has no future (gloo's send, recv, reduce_scatter), to see when the caller's wait
// returns. Everything is asked of the real work.
class WatchedWork final : public c10d::Work {
 public:
  WatchedWork(c10::intrusive_ptr<c10d::Work> inner, Entry entry)
      : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), entry_(entry) {}

  ~WatchedWork() override {
    if (!ended_.exchange(true)) entry_.expect(layout::NONE);
  }

  bool isCompleted() override {
    const bool completed = inner_->isCompleted();
    if (completed) ended(!inner_->isSuccess());
    return completed;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      const bool done = inner_->wait(timeout);
      ended(!done);
      return done;
    } catch (...) {
      ended(true);
      throw;
    }
  }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  void abort() override { inner_->abort(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }

  // Not in every torch >= 2.6, hence without `override`.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() { return future_result(*inner_); }
  std::chrono::milliseconds getTimeout() const { return timeout_of(*inner_); }
  uint64_t getCompletionKey() const { return completion_key(*inner_); }
  void blockCurrentStream() { block_current_stream(*inner_); }

 private:
  void ended(bool failed) {
    if (!ended_.exchange(true)) entry_.end(layout::HOST_WAIT, failed);
  }

  c10::intrusive_ptr<c10d::Work> inner_;
  Entry entry_;
  std::atomic<bool> ended_{false};
};

// Sums the sizes of all tensors in an argument; of the first it keeps the type and whether it is on the host.
struct Payload {
  uint64_t bytes = 0;
  uint64_t dtype = 0;
  bool on_host = true;

  void take(const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) return;
      // Not nbytes(): a sparse tensor has none, and its dense size is what all ranks agree on.
      bytes += static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
      if (dtype == 0) {
        dtype = static_cast<uint64_t>(tensor.scalar_type()) + 1;
        on_host = tensor.device().is_cpu();
      }
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) take(element);
    }
  }
};

class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(const layout::Operation& operation, const c10::FunctionSchema& schema)
      : operation_(operation), arguments_(schema.arguments().size()) {
    for (size_t i = 0; i < arguments_; ++i) {
      const std::string& name = schema.arguments()[i].name();
      const int from_top = static_cast<int>(arguments_ - i);
      if (name == "process_group") group_ = from_top;
      if (name == "async_op") async_ = from_top;
      if (name == "reduce_op") reduction_ = from_top;
      if (name == operation.sized_by) sized_by_ = from_top;
      if (name == operation.peer_from) peer_ = from_top;
      if (name == "tensor") device_ = from_top;  // of a barrier: says where it runs, carries nothing
    }
  }

  bool usable() const { return group_ > 0; }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto below =
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    Box* box = recording.load(std::memory_order_acquire);
    if (C10_LIKELY(box == nullptr)) {
      op.redispatchBoxed(below, stack);
      return;
    }
    bool on_host = true;
    const Entry entry = enter(*box, *stack, on_host);
    if (entry.seq == 0) {
      op.redispatchBoxed(below, stack);
      return;
    }
    try {
      op.redispatchBoxed(below, stack);
    } catch (...) {
      entry.end(layout::HOST_WAIT, true);
      throw;
    }
    follow(entry, *stack, on_host);
  }

 private:
  static const c10::IValue& at(const Stack& stack, int from_top) { return stack[stack.size() - from_top]; }

  // An entry with the number 0 was not recorded.
  Entry enter(Box& box, const Stack& stack, bool& on_host) noexcept {
    try {
      const uint64_t now = now_ns();
      const auto pg = at(stack, group_).toCustomClass<c10d::ProcessGroup>();
      Group* group = box.group(*pg);
      if (group == nullptr) {
        add_one(box.progress(layout::PROGRESS_COLLECTIVES_SKIPPED));
        return Entry{nullptr, 0, 0};
      }
      Payload payload;
      if (sized_by_ > 0) payload.take(at(stack, sized_by_));
      on_host = payload.on_host;
      if (device_ > 0 && sized_by_ == 0) on_host = at(stack, device_).toTensor().device().is_cpu();
      const uint64_t peer = peer_ > 0 ? static_cast<uint64_t>(at(stack, peer_).toInt()) : layout::NO_PEER;
      const bool async = async_ > 0 && at(stack, async_).toBool();
      const uint64_t flags =
          (async ? layout::FLAG_ASYNC : 0) | (operation_.coalesced ? layout::FLAG_COALESCED : 0);

      const uint64_t seq = add_one(box.progress(layout::PROGRESS_COLLECTIVES_ENTERED));
      uint64_t body[layout::CHECKSUM];
      body[layout::SEQ] = seq;
      body[layout::OP] = operation_.code;
      body[layout::GROUP] = group->key;
      body[layout::GROUP_SEQ] = number(*group, peer);
      body[layout::BYTES] = payload.bytes;
      body[layout::PACKED] =
          payload.dtype | reduction(stack) << layout::REDUCTION_SHIFT | flags << 16 | group->size << 32;
      body[layout::PEER] = peer;
      body[layout::ENTERED_NS] = now;
      const Entry entry{group, seq, operation_.paired ? 1u : 0u};
      write(box.slot(seq), body, entry.pending(layout::HOST_WAIT));
      put(box.progress(layout::PROGRESS_LAST_ACTIVITY_NS), now);
      return entry;
    } catch (...) {
      add_one(box.progress(layout::PROGRESS_GUARD_TRIPS));
      return Entry{nullptr, 0, 0};
    }
  }

  // As in layout.h; 0 where the operator reduces nothing.
  uint64_t reduction(const Stack& stack) const {
    if (reduction_ == 0) return 0;
    const auto op = at(stack, reduction_).toCustomClass<c10d::ReduceOp>();
    return op ? (static_cast<uint64_t>(op->op_) + 1) & 0xFF : 0;
  }

  uint64_t number(Group& group, uint64_t peer) const {
    if (!operation_.paired) return add_one(group.entered);
    if (peer >= group.size) return 0;  // any source: nobody can say which of the peer's sends it meets
    return add_one(&group.pairs[2 * peer + (operation_.sends ? 0 : 1)]);
  }

  static void write(uint64_t* slot, const uint64_t* body, uint64_t completion) {
    put(slot + layout::SEQ, 0);
    std::atomic_thread_fence(std::memory_order_release);
    for (uint64_t i = 1; i < layout::CHECKSUM; ++i) put(slot + i, body[i]);
    put(slot + layout::CHECKSUM, mixed(body, layout::CHECKSUM));
    put(slot + layout::COMPLETION, completion);
    __atomic_store_n(slot + layout::SEQ, body[layout::SEQ], __ATOMIC_RELEASE);
  }

  // The operation has been handed to the backend: find out when it will be over.
  void follow(const Entry& entry, Stack& stack, bool on_host) noexcept {
    try {
      if (stack.empty() || !stack.back().isObject()) {
        entry.end(layout::HOST_WAIT, false);  // no work: it was over when the call returned
        return;
      }
      const auto work = stack.back().toCustomClass<c10d::Work>();
      // A device's work (NCCL) has a future that is ready once the kernel is enqueued: that is no completion.
      if (!work || !on_host) {
        entry.expect(layout::NONE);
        return;
      }
      const auto future = future_of(*work);
      if (future) {
        entry.expect(layout::CALLBACK);
        future->addCallback(
            [entry](c10::ivalue::Future& done) { entry.end(layout::CALLBACK, done.hasError()); },
            /*uses_future=*/false);
      } else {
        c10::intrusive_ptr<c10d::Work> watched = c10::make_intrusive<WatchedWork>(work, entry);
        stack.back() = c10::IValue(std::move(watched));
      }
    } catch (...) {
      add_one(entry.group->box->progress(layout::PROGRESS_GUARD_TRIPS));
    }
  }

  // Asked once per type of work, because a refusal is an exception with a backtrace.
  c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work) {
    const std::type_info* type = &typeid(work);
    if (without_future_.load(std::memory_order_relaxed) == type) return nullptr;
    try {
      return work.getFuture();
    } catch (...) {
      without_future_.store(type, std::memory_order_relaxed);
      return nullptr;
    }
  }

  const layout::Operation operation_;
  const size_t arguments_;
  // Distance from the stack's top, 0: none.
  int group_ = 0, async_ = 0, sized_by_ = 0, peer_ = 0, device_ = 0, reduction_ = 0;
  std::atomic<const std::type_info*> without_future_{nullptr};
};

}  // namespace
}  // namespace loom

// Registers the kernels; returns how many operators are recorded. Call once per process.
extern "C" int loom_load() {
  try {
    // Leaked: unloading at exit would pull the kernels away from backend threads that still run.
    auto* library = new torch::Library(
        torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect, "torchloom recorder", 0);
    int count = 0;
    for (const auto& operation : loom::layout::OPERATIONS) {
      const auto op = c10::Dispatcher::singleton().findSchema({std::string("c10d::") + operation.name, ""});
      if (!op) continue;
      auto kernel = std::make_unique<loom::Kernel>(operation, op->schema());
      if (!kernel->usable()) continue;
      library->impl(operation.name, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
      ++count;
    }
    // Children of the worker share its pages: they must not write into its black box.
    pthread_atfork(nullptr, nullptr, [] { loom::recording.store(nullptr); });
    return count;
  } catch (...) {
    return -1;
  }
}

// Starts recording into the black box mapped at `words`, which must stay mapped until the process ends.
extern "C" int loom_start(uint64_t* words) {
  try {
    loom::recording.store(new loom::Box(words), std::memory_order_release);
    return 0;
  } catch (...) {
    return -1;
  }
}

extern "C" void loom_stop() {
  loom::recording.store(nullptr);
}
