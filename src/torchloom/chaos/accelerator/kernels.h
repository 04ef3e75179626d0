// Operators on the simulated device. Memory is made here and now; everything that computes is launched: its
// output's shape comes from running it on meta tensors, and the CPU's kernel runs in the queue. What has no meta
// kernel or answers with a number (`item`) makes the host wait for the queue, as on any device.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <torch/library.h>

#include "guard.h"

namespace sim {

using Stack = torch::jit::Stack;

// The same memory as a CPU tensor. Keeps the storage, so it must not outlive the task that uses it.
inline at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  return at::from_blob(
      tensor.numel() == 0 ? nullptr : tensor.data_ptr(), tensor.sizes(), tensor.strides(),
      [storage = tensor.storage()](void*) {}, tensor.options().device(at::kCPU).requires_grad(false));
}

inline at::Tensor without_data(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta).requires_grad(false));
}

inline at::Tensor like(const at::Tensor& tensor) {
  return at::detail::empty_strided_generic(
      tensor.sizes(), tensor.strides(), &memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      tensor.scalar_type());
}

template <typename F>
c10::IValue converted(const c10::IValue& value, c10::DeviceType type, const F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isDevice()) return value.toDevice().type() == kType ? c10::Device(type) : value.toDevice();
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorVector()) made.push_back(f(tensor));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      made.push_back(tensor ? std::optional<at::Tensor>(f(*tensor)) : std::nullopt);
    return made;
  }
  return value;
}

template <typename F>
Stack converted(const Stack& stack, c10::DeviceType type, const F& f) {
  Stack made;
  for (const c10::IValue& value : stack) made.push_back(converted(value, type, f));
  return made;
}

// The argument that a return of the schema is, if it is one: `add_` returns its self.
inline int same_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info != nullptr && *info == *result.alias_info()) return static_cast<int>(i);
  }
  return -1;
}

// Copies what a CPU kernel returned into tensors of the device.
inline void take_over(const c10::IValue& made, const c10::IValue& wanted) {
  if (wanted.isTensor()) {
    if (wanted.toTensor().defined()) on_host(wanted.toTensor()).copy_(made.toTensor());
  } else if (wanted.isTensorList()) {
    const auto from = made.toTensorVector();
    const auto to = wanted.toTensorVector();
    for (size_t i = 0; i < to.size(); ++i) on_host(to[i]).copy_(from[i]);
  }
}

inline bool launched(const c10::OperatorHandle& op, const Stack& arguments, Stack& results) {
  const auto& schema = op.schema();
  for (const auto& result : schema.returns()) {
    const auto kind = result.type()->kind();
    const bool tensors = kind == c10::TypeKind::TensorType ||
        (kind == c10::TypeKind::ListType && result.type()->castRaw<c10::ListType>()->getElementType()->kind() ==
             c10::TypeKind::TensorType);
    if (!tensors) return false;
  }
  Stack shapes = converted(arguments, c10::DeviceType::Meta, without_data);
  try {
    op.callBoxed(&shapes);
  } catch (const c10::Error&) {
    return false;
  }
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const int same = same_argument(schema, schema.returns()[i]);
    if (same < 0) {
      results.push_back(converted(shapes[i], kType, [](const at::Tensor& t) { return t.defined() ? like(t) : t; }));
      continue;
    }
    if (arguments[same].isTensor()) {  // an output that the operator makes as large as it must be
      const at::Tensor& target = arguments[same].toTensor();
      const auto wanted = shapes[i].toTensor().sizes();
      if (target.is_privateuseone() && target.sizes() != wanted) target.resize_(wanted);
    }
    results.push_back(arguments[same]);
  }
  Stack on_cpu = converted(arguments, c10::DeviceType::CPU, [](const at::Tensor& t) {
    // A number on the host is read now, as every launch does.
    return t.defined() && !t.is_privateuseone() && t.dim() == 0 ? t.clone() : on_host(t);
  });
  Stack wanted;
  for (size_t i = 0; i < results.size(); ++i)
    wanted.push_back(
        same_argument(schema, schema.returns()[i]) < 0
            ? converted(results[i], c10::DeviceType::CPU, on_host)
            : c10::IValue());
  current().push([op, on_cpu = std::move(on_cpu), wanted = std::move(wanted)]() mutable {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(&on_cpu);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (!wanted[i].isNone()) take_over(on_cpu[i], wanted[i]);
  });
  return true;
}

inline void run(const c10::OperatorHandle& op, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  Stack arguments(stack->end() - count, stack->end());
  Stack results;
  at::AutoDispatchBelowADInplaceOrView below;
  if (!launched(op, arguments, results)) {
    current().synchronize();
    Stack on_cpu = converted(arguments, c10::DeviceType::CPU, on_host);
    op.callBoxed(&on_cpu);
    results.clear();
    for (size_t i = 0; i < op.schema().returns().size(); ++i) {
      const int same = same_argument(op.schema(), op.schema().returns()[i]);
      if (same >= 0) {
        const at::Tensor& target = arguments[same].toTensor();
        const at::Tensor& made = on_cpu[i].toTensor();
        if (target.is_privateuseone() && target.sizes() != made.sizes()) target.resize_(made.sizes());
        if (target.is_privateuseone() && on_host(target).data_ptr() != made.data_ptr()) on_host(target).copy_(made);
        results.push_back(arguments[same]);
        continue;
      }
      results.push_back(converted(on_cpu[i], kType, [](const at::Tensor& t) {
        if (!t.defined()) return t;
        at::Tensor made = like(t);
        on_host(made).copy_(t);
        return made;
      }));
    }
  }
  stack->erase(stack->end() - count, stack->end());
  for (auto& result : results) stack->push_back(std::move(result));
}

inline at::Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.is_cpu() && !non_blocking) {
    current().synchronize();
    to.copy_(on_host(from));
    return to;
  }
  // The host may change its tensor right after the call.
  const at::Tensor source = from.is_cpu() ? from.detach().clone() : on_host(from);
  current().push([source, target = on_host(to)]() mutable {
    at::AutoDispatchBelowADInplaceOrView below;
    target.copy_(source);
  });
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

inline const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto wanted = C10_AS_INTARRAYREF_SLOW(size);
  const size_t bytes = c10::multiply_integers(wanted) * self.element_size() +
      static_cast<size_t>(self.storage_offset()) * self.element_size();
  if (bytes > self.storage().nbytes()) Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(wanted);
  return self;
}

inline at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

inline at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

inline at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

inline at::Tensor& set_storage(
    at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(
      self, std::move(storage), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// Has no meta kernel; the host must not wait for what the probe computes with it.
inline at::Tensor& abs_out(const at::Tensor& self, at::Tensor& out) {
  out.resize_(self.sizes());
  current().push([from = on_host(self), to = on_host(out)]() mutable {
    at::AutoDispatchBelowADInplaceOrView below;
    at::abs_out(to, from);
  });
  return out;
}

inline void record_stream(at::Tensor&, at::Stream) {}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("unfold", at::native::unfold);
  m.impl("record_stream", record_stream);
  m.impl("abs.out", abs_out);
}

}  // namespace sim
