// The simulated device: queues that run what was launched, in order, each on a thread of its own; events with
// times; and the faults that can be put in. Knows nothing of tensors.
//
// Everything is leaked on purpose: threads run until the process is gone.
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

namespace sim {

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

// What was done wrong on purpose, and what came of it.
struct Faults {
  std::atomic<bool> lost{false};          // the device has fallen off the bus: every call fails
  std::atomic<bool> unloading{false};     // the process is ending, and the driver with it
  std::atomic<bool> stuck{false};         // a stuck kernel ends when this is false
  std::atomic<bool> stalled{false};       // collectives do not end while this is true
  std::atomic<int> fail_collectives{0};   // so many collectives fail
  std::atomic<bool> resultless{false};    // works never say how they ended, as those of some backends
  std::atomic<uint64_t> transfer_ns{0};   // a collective takes at least this long once everybody is there
  std::atomic<uint64_t> depth{1024};      // tasks that a queue holds before a launch blocks the host
  std::atomic<bool> capturing{false};     // a stream capture is under way
  std::atomic<uint64_t> capture_thread{0};
  std::atomic<int> invalidated{0};        // calls that would have ended a capture
  std::mutex mutex;
  std::string error;                      // of a kernel that failed: every later call raises it
};

inline Faults& faults() {
  static auto* all = new Faults;
  return *all;
}

inline uint64_t thread_number() {
  static std::atomic<uint64_t> next{0};
  thread_local const uint64_t mine = ++next;
  return mine;
}

inline int& capture_mode() {
  thread_local int mode = 0;  // as CUDA's: 0 global, 1 thread local, 2 relaxed
  return mode;
}

// A call that CUDA forbids to other threads while a capture in global mode is under way.
inline void unsafe_in_capture() {
  Faults& f = faults();
  if (f.capturing && capture_mode() != 2 && f.capture_thread != thread_number()) ++f.invalidated;
}

inline void check() {
  Faults& f = faults();
  if (f.lost) throw std::runtime_error("loomsim error: device lost (fell off the bus)");
  if (f.unloading) throw std::runtime_error("loomsim error: driver shutting down");
  std::lock_guard<std::mutex> lock(f.mutex);
  if (!f.error.empty()) throw std::runtime_error("loomsim error: " + f.error);
}

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, done = 0, time_ns = 0;

  void finish(uint64_t version) {
    std::lock_guard<std::mutex> lock(mutex);
    if (version > done) {
      done = version;
      time_ns = now_ns();
    }
    changed.notify_all();
  }
  void wait(uint64_t version) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done >= version; });
  }
  bool query() {
    std::lock_guard<std::mutex> lock(mutex);
    return done >= recorded;
  }
};
using EventPtr = std::shared_ptr<Event>;

// A stream: what is pushed runs later, in order.
class Queue {
 public:
  Queue() { std::thread([this] { run(); }).detach(); }

  void push(std::function<void()> task) {
    check();
    std::unique_lock<std::mutex> lock(mutex_);
    room_.wait(lock, [&] { return tasks_.size() < faults().depth || faults().lost; });
    tasks_.push_back(std::move(task));
    ++pushed_;
    if (idle_) work_.notify_one();
  }
  uint64_t record(const EventPtr& event) {
    uint64_t version;
    {
      std::lock_guard<std::mutex> lock(event->mutex);
      version = ++event->recorded;
    }
    push([event, version] { event->finish(version); });
    return version;
  }
  void wait_for(const EventPtr& event) {
    uint64_t version;
    {
      std::lock_guard<std::mutex> lock(event->mutex);
      version = event->recorded;
    }
    push([event, version] { event->wait(version); });
  }
  bool idle() {
    check();
    std::lock_guard<std::mutex> lock(mutex_);
    return ended_ == pushed_;
  }
  uint64_t pending() {
    std::lock_guard<std::mutex> lock(mutex_);
    return pushed_ - ended_;
  }
  // Blocks the caller until everything pushed so far has run.
  void synchronize() {
    check();
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const uint64_t until = pushed_;
      // In slices, because a device that is lost tells nobody.
      while (ended_ < until && !faults().lost) room_.wait_for(lock, std::chrono::milliseconds(20));
    }
    check();
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "loom-sim");
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        idle_ = true;
        work_.wait(lock, [&] { return !tasks_.empty(); });
        idle_ = false;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      while (faults().lost) std::this_thread::sleep_for(std::chrono::seconds(1));
      try {
        task();
      } catch (const std::exception& e) {
        std::lock_guard<std::mutex> lock(faults().mutex);
        if (faults().error.empty()) faults().error = e.what();
      }
      task = nullptr;  // what it held is free before anybody learns that it has run
      {
        std::lock_guard<std::mutex> lock(mutex_);
        ++ended_;
      }
      room_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, room_;
  std::deque<std::function<void()>> tasks_;
  uint64_t pushed_ = 0, ended_ = 0;
  bool idle_ = false;
};

// The queues of the process's one device by the number of their stream: 0 is the default stream, 1 to 4 are the
// pool's, and backends take those from 100 on.
class Device {
 public:
  static constexpr int64_t kPool = 4;

  Queue& queue(int64_t stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& place = queues_[stream];
    if (!place) place = new Queue;
    return *place;
  }
  int64_t from_pool() { return 1 + next_pool_++ % kPool; }
  int64_t fresh() { return 100 + next_fresh_++; }
  void synchronize() {
    std::map<int64_t, Queue*> all;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      all = queues_;
    }
    check();
    for (auto& [stream, queue] : all) queue->synchronize();
  }
  bool used() {
    std::lock_guard<std::mutex> lock(mutex_);
    return !queues_.empty();
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, Queue*> queues_;
  std::atomic<int64_t> next_pool_{0}, next_fresh_{0};
};

// As CUDA's: at the end of the process every call fails.
inline Device& device() {
  static auto* one = [] {
    std::atexit([] { faults().unloading = true; });
    return new Device;
  }();
  return *one;
}

inline int64_t& current_stream() {
  thread_local int64_t stream = 0;
  return stream;
}

inline Queue& current() { return device().queue(current_stream()); }

inline void sleep_ns(uint64_t ns) {
  const uint64_t until = now_ns() + ns;
  while (now_ns() < until && !faults().lost) {
    const uint64_t left = until - now_ns();
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<uint64_t>(left, 20000000)));
  }
}

}  // namespace sim
