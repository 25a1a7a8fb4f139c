#include "cuda/batch_entries.h"

#include "storage/base/status.h"

namespace kvist::cuda {

void BatchEntries::Join(driver::Address to_address, driver::Address from_address, size_t size) {
  if (count() > 0 && to.back() + sizes.back() == to_address && from.back() + sizes.back() == from_address) {
    sizes.back() += size;
    bytes += size;
  } else {
    Add(to_address, from_address, size);
  }
}

BatchEntries BatchEntries::TakeFrom(size_t first) {
  BatchEntries taken;
  for (size_t i = first; i < sizes.size(); ++i) taken.Add(to[i], from[i], sizes[i]);
  to.resize(first), from.resize(first), sizes.resize(first);
  bytes -= taken.bytes;
  return taken;
}

absl::StatusOr<driver::Stream> MakeStream(const Gpu& gpu, Direction direction) {
  const driver::Driver& driver = gpu.driver();
  int least = 0, greatest = 0;
  KVIST_RETURN_IF_ERROR(driver.Check(driver->CtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange"));
  driver::Stream stream = nullptr;
  KVIST_RETURN_IF_ERROR(driver.Check(driver->StreamCreateWithPriority(&stream, driver::kStreamNonBlocking,
                                                                      direction == Direction::kLoad ? greatest : least),
                                     "cuStreamCreateWithPriority"));
  return stream;
}

absl::Status CopyByDma(const Gpu& gpu, BatchEntries& entries, driver::Stream stream) {
  const driver::Driver& driver = gpu.driver();
  if (driver->MemcpyBatchAsync != nullptr && gpu.has_host_addresses()) {
    driver::MemcpyAttributes attributes;
    size_t start = 0, failed = 0;
    return driver.Check(driver->MemcpyBatchAsync(entries.to.data(), entries.from.data(), entries.sizes.data(),
                                                 entries.count(), &attributes, &start, 1, &failed, stream),
                        "cuMemcpyBatchAsync");
  }
  for (size_t i = 0; i < entries.count(); ++i) {
    KVIST_RETURN_IF_ERROR(
        driver.Check(driver->MemcpyAsync(entries.to[i], entries.from[i], entries.sizes[i], stream), "cuMemcpyAsync"));
  }
  return absl::OkStatus();
}

}  // namespace kvist::cuda
