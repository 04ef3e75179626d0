// The c10d backend of the simulated device, after NCCL's: a collective is enqueued on a stream of its own, behind
// what the current stream has been given so far; wait() makes the current stream wait and not the host; the future
// is ready at once and carries the event; only a barrier's wait() blocks the host. As NCCL's since torch 2.8, a
// synchronous collective has no work: the current stream waits at once. Operations between startCoalescing and
// endCoalescing have none either; the end of the batch has one for all. Below, gloo moves the bytes.
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
    // How it ended, for whoever has dropped the work, as NCCL's watchdog says it.
    c10::intrusive_ptr<c10::ivalue::Future> result =
        c10::make_intrusive<c10::ivalue::Future>(c10::AnyEnumType::get());
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
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return state->result; }

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
        receives_(device().fresh()),
        batches_(device().fresh()) {}

  const std::string getBackendName() const override { return "loomsim"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return c10::make_intrusive<Options>("loomsim", timeout_); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return number_; }

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override {
    batching_ = batch_paired_ = true;
    batch_async_ = false;
    batch_.clear();
    batch_outputs_.clear();
  }
  WorkPtr endCoalescing() override {
    batching_ = false;
    if (batch_.empty()) return nullptr;
    const int64_t stream = batch_paired_ ? batches_ : collectives_;
    return enqueue(c10d::OpType::COALESCED, std::exchange(batch_outputs_, {}), std::exchange(batch_, {}), batch_async_, stream);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return launch(c10d::OpType::BROADCAST, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.broadcast(on, opts); }, opts.asyncOp);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return launch(c10d::OpType::ALLREDUCE, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.allreduce(on, opts); }, opts.asyncOp);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return launch(c10d::OpType::ALLREDUCE_COALESCED, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.allreduce_coalesced(on, opts); }, opts.asyncOp);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    return launch(c10d::OpType::REDUCE, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.reduce(on, opts); }, opts.asyncOp);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return launch(c10d::OpType::ALLGATHER, flat(outputs), [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.allgather(o, i, opts); }, opts.asyncOp);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    return launch(c10d::OpType::_ALLGATHER_BASE, {output}, [=, o = on_host(output), i = on_host(input)](auto& gloo) mutable { return gloo._allgather_base(o, i, opts); }, opts.asyncOp);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return launch(c10d::OpType::ALLGATHER_COALESCED, outputs, [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.allgather_into_tensor_coalesced(o, i, opts); }, opts.asyncOp);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    return launch(c10d::OpType::GATHER, flat(outputs), [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.gather(o, i, opts); }, opts.asyncOp);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    return launch(c10d::OpType::SCATTER, outputs, [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.scatter(o, i, opts); }, opts.asyncOp);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    return launch(c10d::OpType::REDUCE_SCATTER, outputs, [=, o = on_host(outputs), i = on_host(inputs)](auto& gloo) mutable { return gloo.reduce_scatter(o, i, opts); }, opts.asyncOp);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    return launch(c10d::OpType::_REDUCE_SCATTER_BASE, {output}, [=, o = on_host(output), i = on_host(input)](auto& gloo) mutable { return gloo._reduce_scatter_base(o, i, opts); }, opts.asyncOp);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& to, std::vector<int64_t>& from, const c10d::AllToAllOptions& opts) override {
    return launch(c10d::OpType::ALLTOALL_BASE, {output}, [=, o = on_host(output), i = on_host(input)](auto& gloo) mutable { return gloo.alltoall_base(o, i, to, from, opts); }, opts.asyncOp);
  }
  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return launch(c10d::OpType::SEND, {}, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.send(on, peer, tag); }, true, sends_);
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return launch(c10d::OpType::RECV, tensors, [=, on = on_host(tensors)](auto& gloo) mutable { return gloo.recv(on, peer, tag); }, true, receives_);
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    c10d::BarrierOptions plain = opts;
    plain.device = std::nullopt;
    return launch(c10d::OpType::BARRIER, {}, [plain](auto& gloo) { return gloo.barrier(plain); }, opts.asyncOp);
  }

 private:
  const std::chrono::milliseconds timeout_;

  using Call = std::function<WorkPtr(c10d::Backend&)>;

  WorkPtr launch(c10d::OpType type, Tensors outputs, Call call, bool async, int64_t stream = -1) {
    if (auto error = failed_->exception()) std::rethrow_exception(error);
    if (batching_) {
      batch_.push_back(std::move(call));
      batch_outputs_.insert(batch_outputs_.end(), outputs.begin(), outputs.end());
      batch_async_ |= async;
      batch_paired_ &= stream >= 0;
      return nullptr;
    }
    return enqueue(type, std::move(outputs), {std::move(call)}, async, stream < 0 ? collectives_ : stream);
  }

  WorkPtr enqueue(c10d::OpType type, Tensors outputs, std::vector<Call> calls, bool async, int64_t stream) {
    Queue& mine = device().queue(stream);
    auto work = c10::make_intrusive<Work>(rank_, type, outputs, ++number_);
    auto ready = std::make_shared<Event>();
    current().record(ready);
    mine.wait_for(ready);
    // Nobody asks a work that nobody has: its error is met by the next operation.
    auto failed = async ? nullptr : failed_;
    mine.push([state = work->state, calls = std::move(calls), below = below_, failed] {
      perform(*state, calls, *below);
      if (failed) failed->take(state->error);
    });
    mine.record(work->state->end);
    if (!async) {
      current().wait_for(work->state->end);
      if (type == c10d::OpType::BARRIER) current().synchronize();
      return nullptr;
    }
    // Under the collective's own stream, so that the future carries an event behind it, and is ready at once.
    const int64_t before = std::exchange(current_stream(), stream);
    work->future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{kDevice});
    work->future->markCompleted(c10::IValue(outputs));
    current_stream() = before;
    return work;
  }

  static void perform(Work::State& state, const std::vector<Call>& calls, c10d::Backend& below) {
    std::exception_ptr error;
    Faults& f = faults();
    while (f.stalled && !f.lost) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    try {
      if (f.fail_collectives > 0 && f.fail_collectives-- > 0) throw std::runtime_error("loomsim: remote error in a collective");
      std::vector<WorkPtr> works;  // all of a batch begin before one is waited for
      for (const auto& call : calls) works.push_back(call(below));
      for (const auto& one : works) one->wait();
      sleep_ns(f.transfer_ns);
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard<std::mutex> lock(state.mutex);
      state.over = true;
      state.error = error;
    }
    if (f.resultless) return;
    const auto result = error ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
    state.result->markCompleted(c10::IValue(static_cast<uint8_t>(result)));
  }

  // The first error of an operation without a work.
  class Failed {
   public:
    std::exception_ptr exception() {
      std::lock_guard<std::mutex> lock(mutex_);
      return error_;
    }
    void take(const std::exception_ptr& error) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = error;
    }

   private:
    std::mutex mutex_;
    std::exception_ptr error_;
  };

  c10::intrusive_ptr<c10d::Backend> below_;
  const int64_t collectives_, sends_, receives_, batches_;
  std::atomic<uint64_t> number_{0};
  std::shared_ptr<Failed> failed_ = std::make_shared<Failed>();

  bool batching_ = false, batch_async_ = false, batch_paired_ = true;
  std::vector<Call> batch_;
  Tensors batch_outputs_;
};

}  // namespace sim
