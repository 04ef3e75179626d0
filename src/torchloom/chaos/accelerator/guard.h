// What torch asks of any accelerator: the device guard with streams and events, the hooks, the allocator.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>

#include "device.h"

namespace sim {

constexpr auto kType = c10::DeviceType::PrivateUse1;
inline const c10::Device kDevice(kType, 0);

inline c10::Stream stream_of(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Handle = EventPtr;

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream_of(current_stream()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream_of(device().from_pool()); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream_of(device().fresh()); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int64_t before = current_stream();
    current_stream() = stream.id();
    return stream_of(before);
  }
  bool queryStream(const c10::Stream& stream) const override {
    unsafe_in_capture();
    return device().queue(stream.id()).idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override { device().queue(stream.id()).synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { device().synchronize(); }
  bool isStreamCapturing(const c10::Stream&) const override {
    return faults().capturing && faults().capture_thread == thread_number();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    check();
    unsafe_in_capture();
    if (*event == nullptr) *event = new Handle(std::make_shared<Event>());
    device().queue(stream.id()).record(*static_cast<Handle*>(*event));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) device().queue(stream.id()).wait_for(*static_cast<Handle*>(event));
  }
  bool queryEvent(void* event) const override {
    check();
    unsafe_in_capture();
    return event == nullptr || (*static_cast<Handle*>(event))->query();
  }
  void synchronizeEvent(void* event) const override {
    check();
    if (event == nullptr) return;
    const Handle& handle = *static_cast<Handle*>(event);
    while (!handle->query()) {
      check();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    check();
    const Handle& a = *static_cast<Handle*>(first);
    const Handle& b = *static_cast<Handle*>(second);
    TORCH_CHECK(a->query() && b->query(), "both events must be completed before calculating elapsed time");
    return (static_cast<double>(b->time_ns) - static_cast<double>(a->time_ns)) / 1e6;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Handle*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Host memory. A task that uses it keeps its storage, so there is nothing to order when it is freed.
struct Memory final : c10::Allocator {
  std::atomic<int64_t> allocated{0};

  c10::DataPtr allocate(size_t bytes) override {
    check();
    void* data = nullptr;
    if (bytes != 0) {
      TORCH_CHECK(posix_memalign(&data, 64, bytes + 64) == 0, "loomsim: out of memory");
      *static_cast<size_t*>(data) = bytes;
      allocated += static_cast<int64_t>(bytes);
      data = static_cast<char*>(data) + 64;
    }
    return {data, data, &release, kDevice};
  }
  static void release(void* data);
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    device().synchronize();
    default_copy_data(to, from, bytes);
  }
};

inline Memory& memory() {
  static auto* one = new Memory;
  return *one;
}

inline void Memory::release(void* data) {
  if (data == nullptr) return;
  void* begin = static_cast<char*>(data) - 64;
  memory().allocated -= static_cast<int64_t>(*static_cast<size_t*>(begin));
  free(begin);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return device().used(); }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return kDevice; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    if (impl->nbytes() > 0) device().synchronize();  // what is in it is copied now
    c10::DataPtr grown = memory().allocate(bytes);
    std::memcpy(grown.get(), storage.data(), std::min(bytes, impl->nbytes()));
    impl->set_data_ptr_noswap(std::move(grown));
    impl->set_nbytes(bytes);
  }
};

}  // namespace sim
