// The native collective recorder: a boxed kernel on BackendSelect for every c10d operator we know.
//
// It writes a record into the black box, redispatches with the arguments untouched, and learns of the
// completion from the work's own future, on the backend's thread; for tensors on a device see device.h. It never
// needs the GIL and throws nothing of its own: what goes wrong here is counted and training goes on.
//
// It knows nothing of Python. Offsets, operators and flags come from layout.h, which the build generates from
// torchloom/wire/blackbox.py and torchloom/probe/observe/operators.py, so that there is one definition of each.
// Compiled as one file: box.h (what is written), device.h (work on devices), and this one (what is seen).

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include "box.h"
#include "device.h"

namespace loom {
namespace {

using Stack = torch::jit::Stack;

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

// Stands in for a backend's work; everything is asked of the real one.
class Delegate : public c10d::Work {
 public:
  explicit Delegate(WorkPtr inner) : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return inner_->wait(timeout); }
  void abort() override { inner_->abort(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }

  // Not in every torch >= 2.6, hence without `override`.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() { return future_result(*inner_); }
  std::chrono::milliseconds getTimeout() const { return timeout_of(*inner_); }
  uint64_t getCompletionKey() const { return completion_key(*inner_); }
  void blockCurrentStream() { block_current_stream(*inner_); }

 protected:
  WorkPtr inner_;
};

// For a work that has no future (gloo's send, recv, reduce_scatter), to see when the caller's wait returns.
class WatchedWork final : public Delegate {
 public:
  WatchedWork(WorkPtr inner, Entry entry) : Delegate(std::move(inner)), entry_(entry) {}

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

 private:
  void ended(bool failed) {
    if (!ended_.exchange(true)) entry_.end(layout::HOST_WAIT, failed);
  }

  Entry entry_;
  std::atomic<bool> ended_{false};
};

// For a work on a device: where its end is awaited, an event is put behind it. The work lives as long as its
// user holds it, and not longer because of us.
class DeviceWork final : public Delegate {
 public:
  DeviceWork(WorkPtr inner, FlightPtr flight) : Delegate(std::move(inner)), flight_(std::move(flight)) {
    flight_->work = inner_.get();
    flight_->hold.store(FREE);
  }

  ~DeviceWork() override {
    flight_->result = result_of(*inner_);
    flight_->left = std::move(inner_);
    if (flight_->hold.exchange(DROPPED) != ASKED) flight_->left.reset();
  }

  bool wait(std::chrono::milliseconds timeout) override {
    try {
      const bool done = inner_->wait(timeout);
      Watch::get().mark_end(*flight_);
      return done;
    } catch (...) {
      flight_->over.store(static_cast<int>(End::FAILED), std::memory_order_release);
      throw;
    }
  }
  void synchronize() override {
    inner_->synchronize();
    Watch::get().mark_end(*flight_);
  }
  void blockCurrentStream() {
    block_current_stream(*inner_);
    Watch::get().mark_end(*flight_);
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = inner_->getFuture();
    if (future && !asked_.exchange(true)) follow(*future);
    return future;
  }

 private:
  // The callback of a device's future runs at once, under a stream of torch's pool that waits for the device.
  // (The allocator is told that the outputs are used there, as for any other callback: DDP's are its buckets.)
  void follow(c10::ivalue::Future& future) noexcept {
    try {
      if (!future.devices().empty()) {
        future.addCallback([flight = flight_](c10::ivalue::Future&) { Watch::get().mark_end(*flight); });
      } else {
        future.addCallback(
            [flight = flight_](c10::ivalue::Future& done) {
              flight->over.store(static_cast<int>(done.hasError() ? End::FAILED : End::YES));
            },
            /*uses_future=*/false);
      }
    } catch (...) {
      add_one(flight_->entry.group->box->progress(layout::PROGRESS_GUARD_TRIPS));
    }
  }

  FlightPtr flight_;
  std::atomic<bool> asked_{false};
};

// Sums the sizes of all tensors in an argument; of the first it keeps the type and the device.
struct Payload {
  uint64_t bytes = 0;
  uint64_t dtype = 0;
  c10::Device device = c10::Device(c10::kCPU);

  void take(const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) return;
      // Not nbytes(): a sparse tensor has none, and its dense size is what all ranks agree on.
      bytes += static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
      if (dtype == 0) {
        dtype = static_cast<uint64_t>(tensor.scalar_type()) + 1;
        device = tensor.device();
      }
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) take(element);
    }
  }
};

// Operations of a group between the begin and the end of a batch (torch's coalescing): the backend gives them no
// work, and one for all of them at the end, which Python shows us (torchloom/probe/observe/batches.py).
class Batches {
 public:
  static Batches& get() {
    static auto* all = new Batches;
    return *all;
  }
  void begin(Group* group) {
    std::lock_guard<std::mutex> lock(mutex_);
    open_[group].clear();
    any_.store(true, std::memory_order_relaxed);
  }
  // Whether the group has a batch open, and something in it.
  std::pair<bool, bool> state(Group* group) {
    if (!any_.load(std::memory_order_relaxed)) return {false, false};
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(group);
    return {found != open_.end(), found != open_.end() && !found->second.empty()};
  }
  void add(FlightPtr flight) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& batch = open_[flight->entry.group];
    if (batch.size() < kMost) batch.push_back(std::move(flight));
  }
  std::vector<FlightPtr> end(Group* group) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(group);
    if (found == open_.end()) return {};
    std::vector<FlightPtr> batch = std::move(found->second);
    open_.erase(found);
    any_.store(!open_.empty(), std::memory_order_relaxed);
    return batch;
  }

 private:
  static constexpr size_t kMost = 1024;
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::unordered_map<Group*, std::vector<FlightPtr>> open_;
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
    Before before;
    const Entry entry = enter(*box, *stack, before);
    if (entry.seq == 0) {
      op.redispatchBoxed(below, stack);
      return;
    }
    try {
      op.redispatchBoxed(below, stack);
    } catch (...) {
      if (before.early) {
        before.early->over.store(static_cast<int>(End::FAILED), std::memory_order_release);
        throw;
      }
      put(box->slot(entry.seq) + layout::ARRIVAL, 0);
      entry.end(layout::HOST_WAIT, true);
      throw;
    }
    follow(entry, *stack, before);
  }

 private:
  static const c10::IValue& at(const Stack& stack, int from_top) { return stack[stack.size() - from_top]; }

  // What is known of an operation before it is handed to the backend.
  struct Before {
    c10::Device device = c10::Device(c10::kCPU);
    std::optional<c10::Stream> stream;  // none: not on a device, or one that cannot be asked
    std::optional<c10::Event> arrived;
    uint64_t lane = 0, step = 0;
    bool first = false, sync = false;
    FlightPtr early;  // of an operation that is watched while its host is in the call
  };

  // An entry with the number 0 was not recorded.
  Entry enter(Box& box, const Stack& stack, Before& before) noexcept {
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
      before.device = payload.device;
      if (device_ > 0 && sized_by_ == 0) before.device = at(stack, device_).toTensor().device();
      const uint64_t peer = peer_ > 0 ? static_cast<uint64_t>(at(stack, peer_).toInt()) : layout::NO_PEER;
      const bool async = async_ > 0 && at(stack, async_).toBool();
      before.sync = async_ > 0 && !async;
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
      if (!before.device.is_cpu()) approach(box, entry, peer, before);
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

  // The last thing before a device is given the operation: an event in front of it.
  void approach(Box& box, const Entry& entry, uint64_t peer, Before& before) noexcept {
    try {
      Watch& watch = Watch::get();
      before.stream = watch.stream_of(before.device);
      if (!before.stream) return;
      const uint64_t way = operation_.paired ? 2 * peer + (operation_.sends ? 2 : 3) : 0;
      const uint64_t lane[2] = {entry.group->key, way};
      before.lane = mixed(lane, 2);
      before.step = *box.progress(layout::PROGRESS_STEPS) + 1;
      before.first = box.last_step.exchange(before.step) != before.step;
      if (!watch.is_timed(before.step, before.first)) return;
      if (Batches::get().state(entry.group).second) return;  // the first of a batch stands for all
      before.arrived = watch.record(*before.stream, box);
      if (!before.arrived) return;
      put(box.slot(entry.seq) + layout::ARRIVAL, entry.approaching());
      if (!is_barrier() || Batches::get().state(entry.group).first) return;
      before.early = make_flight(entry, before);
      before.early->hold.store(ENTERING);
      entry.expect(layout::DEVICE_EVENT);
      watch.add(before.early, *before.stream);
    } catch (...) {
      add_one(box.progress(layout::PROGRESS_GUARD_TRIPS));
    }
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
    put(slot + layout::ARRIVAL, 0);
    put(slot + layout::HEAD, 0);
    __atomic_store_n(slot + layout::SEQ, body[layout::SEQ], __ATOMIC_RELEASE);
  }

  bool is_barrier() const { return device_ > 0 && sized_by_ == 0; }

  static FlightPtr make_flight(const Entry& entry, Before& before) {
    auto flight = std::make_shared<Flight>(entry, before.device);
    flight->lane = before.lane;
    flight->step = before.step;
    flight->first = before.first;
    flight->arrived = std::move(before.arrived);
    return flight;
  }

  // The operation has been handed to the backend: find out when it will be over.
  void follow(const Entry& entry, Stack& stack, Before& before) noexcept {
    try {
      if (stack.empty() || !stack.back().isObject()) {
        if (before.early) {
          before.early->over.store(static_cast<int>(End::YES), std::memory_order_release);
          return;
        }
        entry.end(layout::HOST_WAIT, false);  // no work: it was over when the call returned
        return;
      }
      const auto work = stack.back().toCustomClass<c10d::Work>();
      if (!before.device.is_cpu()) {
        fly(entry, stack, work, before);
        return;
      }
      const auto future = work ? future_of(*work) : nullptr;
      if (!work) {
        entry.expect(layout::NONE);
      } else if (future) {
        entry.expect(layout::CALLBACK);
        future->addCallback(
            [entry](c10::ivalue::Future& done) { entry.end(layout::CALLBACK, done.hasError()); },
            /*uses_future=*/false);
      } else {
        WorkPtr watched = c10::make_intrusive<WatchedWork>(work, entry);
        stack.back() = c10::IValue(std::move(watched));
      }
    } catch (...) {
      if (before.early) before.early->hold.store(DROPPED);
      add_one(entry.group->box->progress(layout::PROGRESS_GUARD_TRIPS));
    }
  }

  // A device's work (NCCL) has a future that is ready once the kernel is enqueued: that is no completion.
  void fly(const Entry& entry, Stack& stack, const WorkPtr& work, Before& before) {
    const bool batched = !work && Batches::get().state(entry.group).first;
    if (!before.stream || (work && is_python(*work)) || (!work && !batched && !before.sync)) {
      put(entry.group->box->slot(entry.seq) + layout::ARRIVAL, 0);
      entry.expect(layout::NONE);
      if (before.early) before.early->hold.store(DROPPED);
      return;
    }
    auto flight = before.early ? before.early : make_flight(entry, before);
    if (batched) {
      entry.expect(layout::NONE);  // until the batch ends, if it ever does
      Batches::get().add(std::move(flight));
      return;
    }
    entry.expect(layout::DEVICE_EVENT);
    if (work) {
      WorkPtr stand_in = c10::make_intrusive<DeviceWork>(work, flight);
      stack.back() = c10::IValue(std::move(stand_in));
    } else {  // synchronous, without a work: it is over when the current stream has come here
      Watch::get().mark_end(*flight);
      flight->hold.store(DROPPED);
    }
    if (!before.early) Watch::get().add(flight, *before.stream);
  }

  // Asked by another thread, it would take the GIL; and its user may want the very object.
  static bool is_python(const c10d::Work& work) {
    return strstr(typeid(work).name(), "PyWork") != nullptr || strstr(typeid(work).name(), "Python") != nullptr;
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

// A batch of this group begins.
void batch_begins(const c10::intrusive_ptr<c10d::ProcessGroup>& pg) {
  Box* box = recording.load(std::memory_order_acquire);
  Group* group = box != nullptr && pg ? box->group(*pg) : nullptr;
  if (group != nullptr) Batches::get().begin(group);
}

// The batch has ended: its first operation stands for all, and a stand-in for the work is given back. Without a
// work (a synchronous batch) it is over when the current stream has come here.
WorkPtr batch_ended(const c10::intrusive_ptr<c10d::ProcessGroup>& pg, const WorkPtr& work) {
  Box* box = recording.load(std::memory_order_acquire);
  Group* group = box != nullptr && pg ? box->group(*pg) : nullptr;
  if (group == nullptr) return work;
  const auto batch = Batches::get().end(group);
  if (batch.empty()) return work;
  try {
    const auto stream = Watch::get().stream_of(batch.front()->device);
    if (!stream) return work;
    const FlightPtr& first = batch.front();
    for (const FlightPtr& one : batch) {
      one->entry.change(one->entry.pending(layout::NONE), one->entry.pending(layout::DEVICE_EVENT));
      if (one == first) continue;
      if (first->arrived) put(box->slot(one->entry.seq) + layout::ARRIVAL, one->entry.approaching());
      first->others.push_back(one->entry);
    }
    if (first->entry.paired) {
      const uint64_t lane[2] = {group->key, 1};
      first->lane = mixed(lane, 2);
    }
    WorkPtr given = work;
    if (work) {
      given = c10::make_intrusive<DeviceWork>(work, first);
    } else {
      first->hold.store(DROPPED);
      Watch::get().mark_end(*first);
    }
    Watch::get().add(first, *stream);
    return given;
  } catch (...) {
    add_one(box->progress(layout::PROGRESS_GUARD_TRIPS));
    return work;
  }
}

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
    auto* batches = new torch::Library(torch::Library::DEF, "torchloom", std::nullopt, "torchloom recorder", 0);
    batches->def("batch_begins", &loom::batch_begins);
    batches->def("batch_ended", &loom::batch_ended);
    batches->def("sync_batch_ended", [](const c10::intrusive_ptr<c10d::ProcessGroup>& pg) {
      loom::batch_ended(pg, nullptr);
    });
    // Children of the worker share its pages: they must not write into its black box.
    pthread_atfork(
        [] { loom::Watch::get().before_fork(); }, [] { loom::Watch::get().after_fork(false); },
        [] {
          loom::recording.store(nullptr);
          loom::Watch::get().after_fork(true);
        });
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

// What the thread that looks does first for a device of this type (c10::DeviceType); for tests without such a device.
extern "C" int loom_relax(int type) {
  return loom::relax(static_cast<c10::DeviceType>(type));
}

extern "C" void loom_stop() {
  loom::recording.store(nullptr);
}
