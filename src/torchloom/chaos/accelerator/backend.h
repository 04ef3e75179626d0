// The c10d backend of the simulated device, after NCCL's: a collective is enqueued on a stream of its own, behind
// what the current stream has been given so far; wait() makes the current stream wait and not the host; the future
// is ready at once and carries the event; only a barrier's wait() blocks the host. Below, gloo moves the bytes.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "kernels.h"

namespace sim {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

inline Tensors on_host(const Tensors& tensors) {
  Tensors made;
  for (const auto& tensor : tensors) made.push_back(on_host(tensor));
  return made;
}
inline std::vector<Tensors> on_host(const std::vector<Tensors>& lists) {
  std::vector<Tensors> made;
  for (const auto& list : lists) made.push_back(on_host(list));
  return made;
}
inline Tensors flat(const std::vector<Tensors>& lists) {
  Tensors made;
  for (const auto& list : lists) made.insert(made.end(), list.begin(), list.end());
  return made;
}

class Work final : public c10d::Work {
 public:
  // What the queue knows of a collective. It holds no tensor.
  struct State {
    std::mutex mutex;
    bool over = false;
    std::exception_ptr error;
    EventPtr end = std::make_shared<Event>();
  };

  Work(int rank, c10d::OpType type, Tensors outputs, uint64_t number)
      : c10d::Work(rank, type), outputs_(std::move(outputs)), number_(number) {}

  bool isCompleted() override {
    unsafe_in_capture();
    check();
    std::lock_guard<std::mutex> lock(state->mutex);
    return state->over;
  }
  bool isSuccess() const override { return exception() == nullptr; }
  std::exception_ptr exception() const override {
    std::lock_guard<std::mutex> lock(state->mutex);
    return state->error;
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    if (opType_ == c10d::OpType::BARRIER) current().synchronize();
    if (auto error = exception()) std::rethrow_exception(error);
    return true;
  }
  void synchronize() override { current().wait_for(state->end); }
  void abort() override {}
  Tensors result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return number_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }

  std::shared_ptr<State> state = std::make_shared<State>();
  c10::intrusive_ptr<c10::ivalue::Future> future;

 private:
  Tensors outputs_;
  uint64_t number_;
};

class Backend final : public c10d::Backend {
 public:
  Backend(c10::intrusive_ptr<c10d::Backend> below, int rank, int size, std::chrono::milliseconds timeout)
      : c10d::Backend(rank, size),
        timeout_(timeout),
        below_(std::move(below)),
        collectives_(device().fresh()),
        sends_(device().fresh()),
        receives_(device().fresh()) {}

  const std::string getBackendName() const override { return "loomsim"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return c10::make_intrusive<Options>("loomsim", timeout_); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return number_; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return launch(c10d::OpType::BROADCAST, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.broadcast(on, opts); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return launch(c10d::OpType::ALLREDUCE, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.allreduce(on, opts); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return launch(c10d::OpType::ALLREDUCE_COALESCED, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.allreduce_coalesced(on, opts); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    return launch(c10d::OpType::REDUCE, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.reduce(on, opts); });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return launch(c10d::OpType::ALLGATHER, flat(outputs), [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.allgather(o, i, opts); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    return launch(c10d::OpType::_ALLGATHER_BASE, {output}, [=, o = on_host(output), i = on_host(input)](auto& gloo) mutable { return gloo._allgather_base(o, i, opts); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return launch(c10d::OpType::ALLGATHER_COALESCED, outputs, [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.allgather_into_tensor_coalesced(o, i, opts); });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    return launch(c10d::OpType::GATHER, flat(outputs), [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.gather(o, i, opts); });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    return launch(c10d::OpType::SCATTER, outputs, [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.scatter(o, i, opts); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    return launch(c10d::OpType::REDUCE_SCATTER, outputs, [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.reduce_scatter(o, i, opts); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    return launch(c10d::OpType::_REDUCE_SCATTER_BASE, {output}, [=, o = on_host(output), i = on_host(input)](auto& gloo) mutable { return gloo._reduce_scatter_base(o, i, opts); });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& to, std::vector<int64_t>& from, const c10d::AllToAllOptions& opts) override {
    return launch(c10d::OpType::ALLTOALL_BASE, {output}, [=, o = on_host(output), i = on_host(input)](auto& gloo) mutable { return gloo.alltoall_base(o, i, to, from, opts); });
  }
  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return launch(c10d::OpType::SEND, {}, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.send(on, peer, tag); }, sends_);
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return launch(c10d::OpType::RECV, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.recv(on, peer, tag); }, receives_);
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    c10d::BarrierOptions plain = opts;
    plain.device = std::nullopt;
    return launch(c10d::OpType::BARRIER, {}, [plain](auto& gloo) { return gloo.barrier(plain); });
  }

 private:
  const std::chrono::milliseconds timeout_;

  using Call = std::function<WorkPtr(c10d::Backend&)>;

  WorkPtr launch(c10d::OpType type, Tensors outputs, Call call, int64_t stream = -1) {
    if (stream < 0) stream = collectives_;
    Queue& mine = device().queue(stream);
    auto work = c10::make_intrusive<Work>(rank_, type, outputs, ++number_);
    auto ready = std::make_shared<Event>();
    current().record(ready);
    mine.wait_for(ready);
    mine.push([state = work->state, call = std::move(call), below = below_] { perform(*state, call, *below); });
    mine.record(work->state->end);
    // Under the collective's own stream, so that the future carries an event behind it, and is ready at once.
    const int64_t before = std::exchange(current_stream(), stream);
    work->future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{kDevice});
    work->future->markCompleted(c10::IValue(outputs));
    current_stream() = before;
    return work;
  }

  static void perform(Work::State& state, const Call& call, c10d::Backend& below) {
    std::exception_ptr error;
    Faults& f = faults();
    while (f.stalled && !f.lost) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    try {
      if (f.fail_collectives > 0 && f.fail_collectives-- > 0) throw std::runtime_error("loomsim: remote error in a collective");
      call(below)->wait();
      sleep_ns(f.transfer_ns);
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard<std::mutex> lock(state.mutex);
    state.over = true;
    state.error = error;
  }

  c10::intrusive_ptr<c10d::Backend> below_;
  const int64_t collectives_, sends_, receives_;
  std::atomic<uint64_t> number_{0};
};

}  // namespace sim
