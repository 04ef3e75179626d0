// When work on a device begins and ends, for any device torch knows: events on its streams, the backend's own
// works, and one thread that looks at both.
//
// A collective on a device is *enqueued* when the call returns. So an event is put before it on the current stream
// (the device has come to it) and one behind it where its end is awaited: by wait(), or by its future. The thread
// asks events and works that nobody has dropped yet; of a dropped one it asks its result, which holds no tensor,
// where the backend has results and was seen to set them. An operation without a work (a synchronous one of NCCL's)
// ends on the current stream, so its event is put there at once; those of a batch end with the batch's work. A
// barrier keeps its host inside the call, so it is watched from before the call. The thread never takes the GIL,
// holds no work and no tensor, frees none, and lets no thread that trains wait for it. It exists once a collective
// was given to a device; a forked child has none. It takes a thousandth of a core: the dearer a look, the rarer.
//
// Nothing here names CUDA but the search for its capture mode, by dlsym: a query from another thread would end a
// stream capture, so the thread uses the relaxed mode, as torch's own watchdog does, or asks nothing.
#pragma once

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <typeinfo>
#include <unordered_map>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "box.h"

namespace loom {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

uint64_t cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

// How a work ended, as its backend says it (c10d::WorkResult). Null if it does not; asked once per type of work,
// because a refusal is an exception with a backtrace. A template, because not every torch >= 2.6 has the question.
template <typename W>
FuturePtr result_of(W& work) noexcept {
  if constexpr (requires { work.getFutureResult(); }) {
    static std::atomic<const std::type_info*> without{nullptr};
    const std::type_info* type = &typeid(work);
    if (without.load(std::memory_order_relaxed) == type) return nullptr;
    try {
      return work.getFutureResult();
    } catch (...) {
      without.store(type, std::memory_order_relaxed);
    }
  }
  return nullptr;
}

// -- stream capture -----------------------------------------------------------------------------------------
using ExchangeMode = int (*)(int*);
constexpr int kRelaxed = 2;

ExchangeMode find_exchange(const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, name)) return reinterpret_cast<ExchangeMode>(found);
  struct Search {
    const char* name;
    void* found;
  } search{name, nullptr};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* wanted = static_cast<Search*>(data);
        const char* path = info->dlpi_name;
        if (!path || (!strstr(path, "libcudart") && !strstr(path, "libamdhip64"))) return 0;
        void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (library == nullptr) return 0;
        wanted->found = dlsym(library, wanted->name);
        return wanted->found != nullptr ? 1 : 0;
      },
      &search);
  return reinterpret_cast<ExchangeMode>(search.found);
}

ExchangeMode exchange_of(c10::DeviceType type) {
  switch (type) {
    case c10::DeviceType::CUDA:
    case c10::DeviceType::HIP:
      if (auto found = find_exchange("cudaThreadExchangeStreamCaptureMode")) return found;
      return find_exchange("hipThreadExchangeStreamCaptureMode");
    case c10::DeviceType::PrivateUse1:
      return find_exchange("loomsimThreadExchangeStreamCaptureMode");  // torchloom/chaos/accelerator
    default:
      return nullptr;
  }
}

// Questions of this thread end no capture from now on. The mode before, or -1 where there is no such call.
int relax(c10::DeviceType type) {
  const auto exchange = exchange_of(type);
  int mode = kRelaxed;
  return exchange != nullptr && exchange(&mode) == 0 ? mode : -1;
}

// Templates, because not every torch >= 2.6 has the question; without it such a device is not asked at all.
template <typename Impl>
bool is_capturing(const Impl& impl, const c10::Stream& stream) {
  if constexpr (requires { impl.isStreamCapturing(stream); }) return impl.isStreamCapturing(stream);
  return false;
}
template <typename Impl>
constexpr bool knows_captures() {
  return requires(const Impl& impl, const c10::Stream& stream) { impl.isStreamCapturing(stream); };
}
const c10::impl::DeviceGuardImplInterface* guard_of(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type) : nullptr;
}

// -- one collective on its way ------------------------------------------------------------------------------
enum Hold : int { FREE, ASKED, DROPPED, ENTERING };  // ENTERING: the call has not returned yet
enum class End : int { NO, YES, FAILED, UNKNOWN };

struct Flight {
  Flight(Entry e, c10::Device d) : entry(e), device(d) {
    std::memcpy(body, e.group->box->slot(e.seq), sizeof body);
  }

  const Entry entry;
  const c10::Device device;
  uint64_t body[layout::CHECKSUM + 1];  // its record, which a host far ahead overwrites
  uint64_t lane = 0;         // operations of one lane end in the order in which they began
  uint64_t step = 0;         // the step it belongs to, from 1
  bool first = false;        // of its step
  std::optional<c10::Event> arrived;

  std::atomic<bool> marked{false};
  std::atomic<bool> has_end{false};
  std::optional<c10::Event> ended;
  std::atomic<int> over{0};  // as End: the host knows

  // The backend's work while somebody else holds it. Whoever drops it while it is asked leaves it here, and in any
  // case how it will have ended, if the backend says that.
  std::atomic<int> hold{FREE};
  c10d::Work* work = nullptr;
  WorkPtr left;
  FuturePtr result;
  // Of a batch (coalescing): the other operations, which end with this one.
  std::vector<Entry> others;

  uint64_t looked_ns = 0, noted = 0, head_ns = 0;  // of the thread that looks
  std::string error;
};
using FlightPtr = std::shared_ptr<Flight>;

// -- the thread that looks ----------------------------------------------------------------------------------
class Watch {
 public:
  static Watch& get() {
    static auto* one = new Watch;
    return *one;
  }

  // The device's stream, or nothing: its captures cannot be told, or one is under way, or it has no streams.
  std::optional<c10::Stream> stream_of(c10::Device device) {
    const auto* impl = guard_of(device.type());
    if (impl == nullptr || !may_ask(device.type())) return std::nullopt;
    const c10::Stream stream = impl->getStream(device);
    if (is_capturing(*impl, stream)) return std::nullopt;
    return stream;
  }

  // An event on this stream, now. Empty when the device has none.
  std::optional<c10::Event> record(const c10::Stream& stream, Box& box) {
    if (eventless_.load(std::memory_order_relaxed)) return std::nullopt;
    const uint64_t before = now_ns();
    std::optional<c10::Event> event = reuse(stream.device());
    try {
      if (!event) event.emplace(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
      event->record(stream);
    } catch (...) {
      if (!recorded_.load(std::memory_order_relaxed)) eventless_ = true;
      return std::nullopt;
    }
    recorded_.store(true, std::memory_order_relaxed);
    add_one(box.progress(layout::PROGRESS_DEVICE_EVENTS));
    __atomic_add_fetch(box.progress(layout::PROGRESS_DEVICE_EVENTS_NS), now_ns() - before, __ATOMIC_RELAXED);
    return event;
  }

  // Whether the collectives of this step, or the first of the step after it, are timed.
  bool is_timed(uint64_t step, bool first) const {
    const uint64_t every = every_.load(std::memory_order_relaxed);
    return every == 1 || step % every == 0 || (first && step % every == 1);
  }

  void add(const FlightPtr& flight, const c10::Stream& stream) {
    std::vector<WorkPtr> dropped;
    std::vector<FuturePtr> unset;
    bool asleep;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!started_) start();
      fresh_.push_back(flight);
      stream_ = stream;
      dropped.swap(dropped_);
      unset.swap(unset_);
      asleep = asleep_;
    }
    if (asleep) wake_.notify_one();
  }

  // Behind the collective on the current stream of this thread. Once per flight.
  void mark_end(Flight& flight) noexcept {
    Box* box = recording.load(std::memory_order_acquire);
    if (box == nullptr || flight.marked.exchange(true)) return;
    try {
      const auto stream = stream_of(flight.device);
      if (!stream) return;
      flight.ended = record(*stream, *box);
      if (flight.ended) flight.has_end.store(true, std::memory_order_release);
    } catch (...) {
      add_one(box->progress(layout::PROGRESS_GUARD_TRIPS));
    }
  }

  void before_fork() {
    mutex_.lock();
    pool_mutex_.lock();
  }
  void after_fork(bool child) {
    if (child) started_ = false;
    pool_mutex_.unlock();
    mutex_.unlock();
  }

 private:
  static constexpr uint64_t kShortest = 1000000, kLongest = 100000000, kDoze = 500000000;
  static constexpr uint64_t kLookShare = 1250;    // of a core: 0.08 %
  static constexpr double kEventShare = 0.005;    // of the time of the threads that train
  static constexpr uint64_t kMostEvery = 64;
  static constexpr int64_t kUnknownResult = 100;  // as c10d::WorkResult's

  static constexpr size_t kMostWaits = 4096, kMostSteps = 64;

  struct Wait {
    uint64_t seq, entered, began, ended;
  };
  struct Over {
    uint64_t step, ended, took;
  };

  bool may_ask(c10::DeviceType type) {
    int known = may_ask_.load(std::memory_order_relaxed);
    if (known < 0) {
      const bool cuda = type == c10::DeviceType::CUDA || type == c10::DeviceType::HIP;
      const bool safe = !cuda ||
          (exchange_of(type) != nullptr && knows_captures<c10::impl::DeviceGuardImplInterface>());
      may_ask_.store(known = safe ? 1 : 0);
    }
    return known == 1;
  }

  std::optional<c10::Event> reuse(c10::Device device) {
    std::lock_guard<std::mutex> lock(pool_mutex_);
    for (size_t i = pool_.size(); i-- > 0;) {
      if (pool_[i].device() != device) continue;
      std::optional<c10::Event> event(std::move(pool_[i]));
      pool_.erase(pool_.begin() + static_cast<long>(i));
      return event;
    }
    return std::nullopt;
  }
  void give_back(std::optional<c10::Event>& event) {
    if (!event) return;
    std::lock_guard<std::mutex> lock(pool_mutex_);
    if (pool_.size() < 256) pool_.push_back(std::move(*event));
    event.reset();
  }

  void start() {
    started_ = true;
    // Now, because the device's library is in use by now: what was registered last is called first, and a device
    // that is being unloaded answers with errors that are none.
    static const int registered = std::atexit([] { Watch::get().ending_ = true; });
    (void)registered;
    sigset_t all, before;  // signals are for the threads of the program
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { run(); }).detach();
    } catch (...) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run() {
    pthread_setname_np(pthread_self(), "loom-device");
    uint64_t pause = 5 * kShortest, used = cpu_ns(), empty_since = 0, judged = now_ns();
    bool relaxed = false;
    for (;;) {
      std::vector<FlightPtr> fresh;
      std::optional<c10::Stream> stream;
      const bool idle = queues_.empty() && empty_since != 0 && now_ns() - empty_since > 200 * kShortest;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_ = idle;
        if (fresh_.empty() || !idle)
          wake_.wait_for(lock, std::chrono::nanoseconds(idle ? kDoze : pause), [&] { return idle && !fresh_.empty(); });
        asleep_ = false;
        fresh.swap(fresh_);
        stream = stream_;
      }
      if (ending_) return;
      Box* box = recording.load(std::memory_order_acquire);
      if (box == nullptr || !stream) continue;
      if (!relaxed) {
        relaxed = true;
        // Or calls that set the device for a moment would make a context on the first one when they set it back.
        if (const auto* impl = guard_of(stream->device_type())) impl->uncheckedSetDevice(stream->device());
        relax(stream->device_type());
        put(box->progress(layout::PROGRESS_DEVICE_EVERY), every_);
      }
      for (auto& flight : fresh) queues_[flight->lane].push_back(std::move(flight));
      const uint64_t now = now_ns();
      if (failed_ && now - failed_ns_ < 10 * kLongest) continue;
      try {
        look(*box, now);
        look_at_state(*box, *stream, now);
      } catch (const std::exception& e) {
        if (ending_) return;
        failed(*box, e.what());
      }
      put(box->progress(layout::PROGRESS_DEVICE_LOOKED_NS), now);
      add_one(box->progress(layout::PROGRESS_DEVICE_LOOKS));
      empty_since = queues_.empty() ? (empty_since ? empty_since : now) : 0;
      const uint64_t cost = cpu_ns() - used;
      used += cost;
      __atomic_add_fetch(box->progress(layout::PROGRESS_DEVICE_LOOKS_NS), cost, __ATOMIC_RELAXED);
      cost_ = cost_ ? (7 * cost_ + cost) / 8 : cost;
      pause = std::clamp(kLookShare * cost_, kShortest, kLongest);
      if (now - judged > 2 * kDoze) {
        judge(*box, now - judged);
        judged = now;
      }
    }
  }

  // Is it over? `UNKNOWN`: it was dropped, nobody ever waited for it, and the device may have come to it.
  End end_of(Flight& flight) {
    if (const int over = flight.over.load(std::memory_order_acquire)) return static_cast<End>(over);
    const bool marked = flight.has_end.load(std::memory_order_acquire);
    const bool passed = marked && flight.ended->query();
    int state = FREE;
    if (!flight.hold.compare_exchange_strong(state, ASKED)) {
      if (state == DROPPED && flight.result) {
        if (flight.result->completed()) return said_by(flight);
        learn_from(flight.result);
      }
      if (passed) return End::YES;
      if (state == ENTERING || marked || flight.has_end.load()) return End::NO;
      const bool ahead = flight.arrived && flight.noted == 0 && !flight.arrived->query();
      return ahead || (flight.result && has_results_) ? End::NO : End::UNKNOWN;
    }
    End end = passed ? End::YES : End::NO;
    std::exception_ptr broken;
    try {
      if (passed || flight.work->isCompleted()) {
        const auto error = flight.work->exception();
        end = error ? End::FAILED : End::YES;
        if (error) flight.error = text_of(error);
        if (!has_results_) learn_from(result_of(*flight.work));
      }
    } catch (...) {
      broken = std::current_exception();
    }
    state = ASKED;
    if (!flight.hold.compare_exchange_strong(state, FREE)) {
      // Dropped meanwhile: a thread that trains frees it, for a tensor's end may need the GIL.
      std::lock_guard<std::mutex> lock(mutex_);
      dropped_.push_back(std::move(flight.left));
    }
    if (broken) std::rethrow_exception(broken);
    return end;
  }

  // Results count from the first one on that was seen to be set: a backend may have them and never set them.
  void learn_from(const FuturePtr& result) {
    if (has_results_ || !result || result == first_result_) return;
    forget(first_result_);
    first_result_ = result;
  }

  // Somebody may have hung Python on one that is not set: a thread that trains frees it.
  void forget(FuturePtr& result) {
    if (!result || result->completed()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    unset_.push_back(std::move(result));
  }

  static End said_by(Flight& flight) {
    const FuturePtr& result = flight.result;
    const int64_t said = !result->hasError() && result->value().isInt() ? result->value().toInt() : kUnknownResult;
    if (said == 0) return End::YES;  // c10d::WorkResult::SUCCESS
    flight.error = said == 1 ? "the backend reports a timeout" : "the backend reports an error";
    return End::FAILED;
  }

  static std::string text_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      return e.what();
    } catch (...) {
      return "an error without a text";
    }
  }

  void look(Box& box, uint64_t now) {
    uint64_t oldest = 0;
    bool moved = false;
    if (first_result_ && first_result_->completed()) {
      has_results_ = true;
      first_result_.reset();
    }
    for (auto at = queues_.begin(); at != queues_.end();) {
      auto& queue = at->second;
      moved |= advance(box, queue, now);
      if (queue.empty()) {
        at = queues_.erase(at);
        continue;
      }
      const uint64_t seq = queue.front()->entry.seq;
      oldest = oldest == 0 ? seq : std::min(oldest, seq);
      ++at;
    }
    looked_ns_ = now;
    publish_steps(box);
    publish_heads(box, oldest);
    put(box.progress(layout::PROGRESS_DEVICE_OLDEST), oldest);
    if (moved) {
      put(box.progress(layout::PROGRESS_LAST_ACTIVITY_NS), now);
      put(box.progress(layout::PROGRESS_DEVICE_STATE_SINCE_NS), now);
    }
  }

  // A queue ends in order: with many in it, the last that is over is searched for.
  bool advance(Box& box, std::deque<FlightPtr>& queue, uint64_t now) {
    bool moved = false;
    while (!queue.empty()) {
      size_t until = queue.size() / 2;
      End end = end_of(*queue[until]);
      // One that was dropped unawaited says nothing of those before it.
      if ((end == End::NO || end == End::UNKNOWN) && until > 0) end = end_of(*queue[until = 0]);
      if (end == End::NO) break;
      for (size_t i = 0; i <= until; ++i) {
        // One that was passed over is over, too; whether it failed is asked, and may not be known.
        const bool failed = i < until && end_of(*queue.front()) == End::FAILED;
        finish(box, *queue.front(), i == until ? end : failed ? End::FAILED : End::YES, now);
        queue.pop_front();
        moved = true;
      }
    }
    if (!queue.empty()) {
      Flight& first = *queue.front();
      if (first.head_ns == 0) {
        first.entry.head_at(first.head_ns = now);
        for (const Entry& other : first.others) other.head_at(now);
      }
      if (first.arrived && first.noted == 0 && first.arrived->query()) {
        note(first, time_of(*first.arrived, 0, now));
        moved = true;
      }
      for (auto& flight : queue) flight->looked_ns = now;
    }
    return moved;
  }

  void finish(Box& box, Flight& flight, End end, uint64_t now) {
    forget(flight.result);
    if (end == End::UNKNOWN) {
      if (flight.arrived && flight.arrived->query()) arrived_at(box, flight, time_of(*flight.arrived, 0, now));
      flight.entry.forget();
      for (const Entry& other : flight.others) other.forget();
      give_back(flight.arrived);
      return;
    }
    uint64_t ended_ns = now;
    const bool marked = flight.has_end.load(std::memory_order_acquire) && flight.ended->query();
    if (flight.arrived && flight.arrived->query()) {
      uint64_t arrived_ns;
      if (marked) {
        ended_ns = time_of(*flight.ended, flight.looked_ns, now);
        const double took_ms = flight.arrived->elapsedTime(*flight.ended);
        arrived_ns = ended_ns - static_cast<uint64_t>(std::max(0.0, took_ms) * 1e6);
      } else {
        arrived_ns = time_of(*flight.arrived, 0, now);
      }
      auto& waits = waits_[flight.step];
      if (waits.size() < kMostWaits)
        waits.push_back({flight.entry.seq, flight.body[layout::ENTERED_NS], arrived_ns, ended_ns});
      arrived_at(box, flight, arrived_ns);
    }
    // Where nobody looks at the work, nobody else tells its error.
    if (!flight.error.empty() && !failed_) write_error(box, flight.error.c_str());
    flight.entry.end_at(ended_ns, layout::DEVICE_EVENT, end == End::FAILED);
    for (const Entry& other : flight.others) other.end_at(ended_ns, layout::DEVICE_EVENT, end == End::FAILED);
    if (marked && flight.arrived) {
      give_back(reference_);
      reference_ = std::move(flight.ended);
      reference_ns_ = ended_ns;
    } else if (marked) {
      give_back(flight.ended);
    }
    give_back(flight.arrived);
  }

  void arrived_at(Box& box, Flight& flight, uint64_t time) {
    note(flight, time);
    if (flight.first) step_began(box, flight, time);
  }

  void note(Flight& flight, uint64_t time) {
    if (flight.noted == 0) {
      flight.entry.arrive_at(time);
      for (const Entry& other : flight.others) other.arrive_at(time);
    } else {  // seen before; now it is known exactly
      uint64_t* word = flight.entry.group->box->slot(flight.entry.seq) + layout::ARRIVAL;
      uint64_t expected = flight.noted << layout::TIME_SHIFT;
      __atomic_compare_exchange_n(
          word, &expected, time << layout::TIME_SHIFT, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    }
    flight.noted = time;
  }

  // An event's time on the host's clock: by the device's own clock from the event before, and never before the
  // last look at which it had not come (`least`), nor after this one.
  uint64_t time_of(c10::Event& event, uint64_t least, uint64_t now) {
    if (!reference_ || reference_->device() != event.device()) return now;
    const double time = static_cast<double>(reference_ns_) + reference_->elapsedTime(event) * 1e6;
    if (time >= static_cast<double>(now)) return now;
    return std::max(static_cast<uint64_t>(std::max(0.0, time)), least);
  }

  void step_began(Box& box, Flight& flight, uint64_t arrived_ns) {
    if (step_event_ && step_ + 1 == flight.step && step_event_->device() == flight.arrived->device()) {
      const uint64_t took = static_cast<uint64_t>(std::max(0.0, step_event_->elapsedTime(*flight.arrived)) * 1e6);
      over_.push_back({step_, arrived_ns, took});
    }
    give_back(step_event_);
    step_event_ = std::move(flight.arrived);
    flight.arrived.reset();
    step_ = flight.step;
  }

  // Steps that are over on the device, once all lanes were looked at: with what they waited, because the records of
  // their collectives may be overwritten.
  void publish_steps(Box& box) {
    for (const Over& over : over_) {
      const auto found = waits_.find(over.step);
      if (found != waits_.end()) {
        const auto [wait, lead] = waited(found->second);
        uint64_t* slot = box.words + layout::COLLECTIVES_AT / 8 + layout::DEVICE_WAITS_WORD +
            (over.step - 1) % layout::COLLECTIVE_SLOTS * layout::COLLECTIVE_WORDS;
        write_small(slot, over.step, wait, lead);
      }
      write_small(
          box.words + layout::DEVICE_STEPS_AT / 8 +
              (over.step - 1) % layout::DEVICE_STEP_SLOTS * layout::DEVICE_STEP_WORDS,
          over.step, over.ended, over.took);
      waits_.erase(waits_.begin(), waits_.upper_bound(over.step));
    }
    over_.clear();
    while (waits_.size() > kMostSteps) waits_.erase(waits_.begin());
  }

  static void write_small(uint64_t* slot, uint64_t number, uint64_t first, uint64_t second) {
    const uint64_t body[3] = {number, first, second};
    put(slot, 0);
    std::atomic_thread_fence(std::memory_order_release);
    put(slot + 1, first);
    put(slot + 2, second);
    put(slot + 3, mixed(body, 3));
    __atomic_store_n(slot, number, __ATOMIC_RELEASE);
  }

  // As waited_ns() of torchloom/core/detect/window.py; and how long the last one had been enqueued.
  static std::pair<uint64_t, uint64_t> waited(std::vector<Wait>& waits) {
    std::sort(waits.begin(), waits.end(), [](const Wait& a, const Wait& b) { return a.seq < b.seq; });
    uint64_t total = 0;
    const Wait* last = nullptr;
    for (const Wait& one : waits) {
      if (last != nullptr && one.began >= last->ended) total += last->ended - last->began;
      last = &one;
    }
    if (last == nullptr) return {0, 0};
    return {total + last->ended - last->began, last->began > last->entered ? last->began - last->entered : 0};
  }

  // Where each lane stands, while the host is so far ahead that the ring may not hold it.
  void publish_heads(Box& box, uint64_t oldest) {
    const uint64_t entered = *box.progress(layout::PROGRESS_COLLECTIVES_ENTERED);
    const bool deep = oldest != 0 && oldest + layout::COLLECTIVE_SLOTS / 2 <= entered;
    if (!deep && !deep_) return;
    std::vector<const Flight*> heads;
    if (deep)
      for (const auto& lane : queues_) heads.push_back(lane.second.front().get());
    std::sort(heads.begin(), heads.end(), [](auto* a, auto* b) { return a->entry.seq < b->entry.seq; });
    for (uint64_t i = 0; i < layout::DEVICE_HEADS; ++i) {
      uint64_t* slot = box.words + layout::DEVICE_HEADS_AT / 8 + i * layout::DEVICE_HEAD_WORDS;
      const Flight* flight = i < heads.size() ? heads[i] : nullptr;
      const uint64_t arrival = flight == nullptr ? 0
          : flight->noted                        ? flight->noted << layout::TIME_SHIFT
          : flight->arrived                      ? flight->entry.approaching()
                                                 : 0;
      if (flight != nullptr && slot[layout::SEQ] == flight->entry.seq && slot[layout::ARRIVAL] == arrival) continue;
      put(slot + layout::SEQ, 0);
      if (flight == nullptr) continue;
      std::atomic_thread_fence(std::memory_order_release);
      for (uint64_t word = 1; word <= layout::CHECKSUM; ++word) put(slot + word, flight->body[word]);
      put(slot + layout::COMPLETION, flight->entry.pending(layout::DEVICE_EVENT));
      put(slot + layout::ARRIVAL, arrival);
      put(slot + layout::HEAD, flight->head_ns);
      __atomic_store_n(slot + layout::SEQ, flight->entry.seq, __ATOMIC_RELEASE);
    }
    deep_ = deep;
  }

  void look_at_state(Box& box, const c10::Stream& stream, uint64_t now) {
    const auto* impl = guard_of(stream.device_type());
    if (impl == nullptr || is_capturing(*impl, stream) || unknown_state_) return;
    bool idle = false;
    try {
      idle = impl->queryStream(stream);
    } catch (const std::exception& e) {
      if (strstr(e.what(), "doesn't support") == nullptr) throw;
      unknown_state_ = true;
      return;
    }
    if (idle) add_one(box.progress(layout::PROGRESS_DEVICE_IDLE_LOOKS));
    // A device that is idle now and then is at work: idle is one that stays so.
    idle_since_ = idle ? (idle_since_ ? idle_since_ : now) : 0;
    if (!idle) set_state(box, layout::DEVICE_BUSY, now);
    if (idle && now - idle_since_ > kDoze) set_state(box, layout::DEVICE_IDLE, idle_since_);
  }

  void set_state(Box& box, uint64_t state, uint64_t now) {
    uint64_t* word = box.progress(layout::PROGRESS_DEVICE_STATE);
    if (*word == state) return;
    put(word, state);
    put(box.progress(layout::PROGRESS_DEVICE_STATE_SINCE_NS), now);
  }

  // The device answers with an error: that is said, and it is asked once a second from now on.
  void failed(Box& box, const char* text) {
    const uint64_t now = now_ns();
    failed_ns_ = now;
    set_state(box, layout::DEVICE_FAILED, now);
    if (!std::exchange(failed_, true)) write_error(box, text);
  }

  static void write_error(Box& box, const char* text) {
    const size_t line = strcspn(text, "\n");
    const size_t length = std::min<size_t>(line, layout::DEVICE_ERROR_BYTES);
    uint64_t* blob = box.words + layout::DEVICE_ERROR_AT / 8;
    const uint64_t version = (blob[0] + 1) | 1;
    put(blob, version);
    std::memcpy(blob + 3, text, length);
    put(blob + 1, length);
    put(blob + 2, crc32(text, length) | static_cast<uint64_t>(length) << 32);
    __atomic_store_n(blob, version + 1, __ATOMIC_RELEASE);
  }

  static uint32_t crc32(const char* text, size_t length) {  // zlib's
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; ++i) {
      crc ^= static_cast<unsigned char>(text[i]);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
  }

  // Whether events cost the threads that train too much, or so little that every step can be timed again.
  void judge(Box& box, uint64_t passed) {
    const uint64_t spent = __atomic_load_n(box.progress(layout::PROGRESS_DEVICE_EVENTS_NS), __ATOMIC_RELAXED);
    const double share = static_cast<double>(spent - spent_) / static_cast<double>(passed);
    spent_ = spent;
    const uint64_t every = every_;
    if (share > kEventShare && every < kMostEvery) every_ = every * 2;
    if (share < kEventShare / 4 && every > 1) every_ = every / 2;
    put(box.progress(layout::PROGRESS_DEVICE_EVERY), every_);
  }

  std::mutex mutex_;  // held for moments, and never while a device is asked
  std::condition_variable wake_;
  std::vector<FlightPtr> fresh_;
  std::vector<WorkPtr> dropped_;
  std::vector<FuturePtr> unset_;
  std::optional<c10::Stream> stream_;
  bool started_ = false, asleep_ = false;

  std::mutex pool_mutex_;
  std::vector<c10::Event> pool_;
  std::atomic<bool> eventless_{false}, recorded_{false}, ending_{false};
  std::atomic<int> may_ask_{-1};
  std::atomic<uint64_t> every_{1};

  std::unordered_map<uint64_t, std::deque<FlightPtr>> queues_;
  std::map<uint64_t, std::vector<Wait>> waits_;  // by step
  std::vector<Over> over_;
  std::optional<c10::Event> reference_, step_event_;
  uint64_t reference_ns_ = 0, step_ = 0, looked_ns_ = 0, idle_since_ = 0, failed_ns_ = 0, spent_ = 0, cost_ = 0;
  FuturePtr first_result_;
  bool failed_ = false, unknown_state_ = false, has_results_ = false, deep_ = false;
};

}  // namespace
}  // namespace loom
