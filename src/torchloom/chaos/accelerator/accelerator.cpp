// A simulated accelerator (PrivateUse1, named "loomsim"): one device per process that behaves like one in every
// point that matters to torchloom. The host runs ahead of it, a collective is enqueued long before it runs, works
// and events tell the truth about the device, and it can be stuck, slow, failing or lost.
//
// Loaded by torchloom/chaos/accelerator; compiled as one file: device.h, guard.h, kernels.h, backend.h.

#include <torch/csrc/utils/pybind.h>

#include "backend.h"

extern "C" {

// A backend over `gloo` (a torch.distributed Backend), as a Python object.
PyObject* loomsim_backend(PyObject* gloo, int rank, int size, int64_t timeout_ms) {
  auto below = py::cast<c10::intrusive_ptr<c10d::Backend>>(py::handle(gloo));
  c10::intrusive_ptr<c10d::Backend> made = c10::make_intrusive<sim::Backend>(std::move(below), rank, size, std::chrono::milliseconds(timeout_ms));
  return py::cast(std::move(made)).release().ptr();
}

int loomsim_load() {
  c10::SetAllocator(sim::kType, &sim::memory());
  at::RegisterPrivateUse1HooksInterface(new sim::Hooks);
  return 0;
}

// A kernel that keeps the current stream busy for so long; below 0, until it is released.
int loomsim_busy(int64_t ns) {
  try {
    if (ns < 0) sim::faults().stuck = true;
    sim::current().push([ns] {
      if (ns >= 0) return sim::sleep_ns(static_cast<uint64_t>(ns));
      while (sim::faults().stuck && !sim::faults().lost) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}
void loomsim_release() { sim::faults().stuck = false; }
void loomsim_lose() { sim::faults().lost = true; }
void loomsim_stall(int on) { sim::faults().stalled = on != 0; }
void loomsim_fail(int collectives) { sim::faults().fail_collectives = collectives; }
void loomsim_results(int on) { sim::faults().resultless = on == 0; }
void loomsim_transfer(uint64_t ns) { sim::faults().transfer_ns = ns; }
void loomsim_depth(uint64_t tasks) { sim::faults().depth = tasks; }
uint64_t loomsim_pending() { return sim::current().pending(); }
int64_t loomsim_allocated() { return sim::memory().allocated; }
void loomsim_capture(int on) {
  sim::faults().capture_thread = sim::thread_number();
  sim::faults().capturing = on != 0;
}
int loomsim_invalidated() { return sim::faults().invalidated; }

// CUDA's cudaThreadExchangeStreamCaptureMode, for this device.
int loomsimThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, sim::capture_mode());
  return 0;
}
}
