#ifndef KVIST_STORAGE_SSD_THREAD_DEVICE_H_
#define KVIST_STORAGE_SSD_THREAD_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "storage/ssd/device.h"
#include "storage/ssd/segment_files.h"

namespace kvist::ssd {

// A Device for systems that don't allow io_uring: `threads` of them call pread, pwrite, fdatasync and fallocate.
// `warnings`: for its report, why it is this one.
std::unique_ptr<Device> MakeThreadDevice(SegmentFiles&& files, uint32_t threads, std::vector<std::string> warnings);

}  // namespace kvist::ssd

#endif  // KVIST_STORAGE_SSD_THREAD_DEVICE_H_
