#!/usr/bin/env python3
"""The layering test is itself tested: every wrong arrow that is planted here must be found, and nothing else."""

import pathlib
import tempfile
import unittest

import layering

WRONG = {  # file -> the include in it that must be refused
    "storage/base/a.h": '#include "storage/pool/slot_allocator.h"',
    "storage/pool/a.h": '#include "cuda/copy_engine.h"',
    "storage/pool/b.cc": "#include <grpcpp/grpcpp.h>",
    "storage/pool/c.cc": '#include "proto/node.pb.h"',
    "storage/base/d.cc": "#  include <google/protobuf/message.h>",
    "storage/base/e.cc": "#include <ucp/api/ucp.h>",
    "storage/base/f.cc": "#include <cuda_runtime.h>",
    "storage/base/g.h": '#include "strong.h"',
    "cuda/a.cc": '#include "daemon/core/core.h"',
    "cuda/b.cc": '#include "proto/session.pb.h"',
    "cuda/driver/a.cc": '#include "cuda/copy_engine.h"',
    "daemon/core/a.cc": "#include <thread>",
    "daemon/core/b.cc": "#include <mutex>",
    "daemon/core/c.cc": "#include <chrono>",
    "daemon/core/d.cc": "#include <unistd.h>",
    "daemon/core/e.cc": "#include <sys/mman.h>",
    "daemon/core/f.cc": '#include "absl/time/clock.h"',
    "daemon/core/g.cc": '#include "absl/synchronization/mutex.h"',
    "daemon/core/h.cc": '#include "storage/base/clock.h"',
    "daemon/core/xxh3.cc": '#include "storage/base/xxh3.h"',
    "daemon/core/i.cc": '#include "cuda/copy_engine.h"',
    "daemon/core/j.cc": '#include "daemon/session/server.h"',
    "daemon/core/k.cc": "#include <spdlog/spdlog.h>",
    "daemon/core/l.cc": "#include <stdio.h>",
    "daemon/core/m.h": '#include "storage/pool/pinned_region.h"',
    "daemon/core/n.cc": '#include "storage/pool/memory_file.h"',
    "daemon/core/o.cc": '#include "storage/pool/huge_pages.h"',
    "daemon/core/p.cc": '#include "storage/pool/memory_limit.h"',
    "daemon/core/q.cc": '#include "storage/base/private_file.h"',
    "daemon/core/s.cc": '#include "storage/base/memory_cgroups.h"',
    "daemon/core/t.cc": '#include "storage/base/usable_cpus.h"',
    "daemon/core/u.cc": '#include "storage/base/runtime_dir.h"',
    "daemon/core/v.cc": '#include "storage/base/mutex.h"',
    "daemon/core/w.cc": '#include "storage/base/log_subject.h"',
    "daemon/core/x.cc": "#include <syncstream>",
    "daemon/core/y.cc": '#include "absl/strings/str_format.h"',
    "daemon/core/z.cc": '#include "daemon/core/../session/server.h"',
    "daemon/session/a.cc": '#include "daemon/rpc/node_service.h"',
    "daemon/session/b.cc": '#include "daemon/config.h"',
    "daemon/session/c.cc": '#include "proto/node.grpc.pb.h"',
    "daemon/rpc/a.cc": '#include "daemon/session/server.h"',
    "daemon/rpc/b.h": "#include <grpcpp/server.h>",
    "daemon/rpc/c.h": '#include "proto/node.grpc.pb.h"',
    "daemon/ctl/a.cc": '#include "daemon/core/core.h"',
    "daemon/a.cc": '#include "connector/src/client.h"',
    "daemon/b.cc": '#include "tests/support/fake.h"',
    "daemon/unheard_of/a.cc": '#include "connector/src/client.h"',
    "connector/src/a.cc": '#include "cuda/copy_engine.h"',
    "connector/src/b.cc": '#include "storage/pool/slot_allocator.h"',
    "connector/src/c.cc": '#include "daemon/core/core.h"',
    "connector/src/d.cc": "#include <grpcpp/channel.h>",
    "connector/include/kvist/a.h": '#include "storage/base/ids.h"',
    "connector/include/kvist/b.h": '#include "absl/status/status.h"',
    "examples/a.cc": '#include "storage/base/ids.h"',
    "examples/tinyllm/b.cc": '#include "connector/src/client.h"',
    "examples/tinyllm/c.cc": '#include "tests/support/fake.h"',
    "examples/tinyllm/d.cc": '#include "kvist/../../src/client.h"',
    "examples/tinyllm/e.cc": '#include <kvist/../../../storage/base/ids.h>',
}

RIGHT = {
    "storage/base/strong.h": "#include <cstdint>",
    "storage/pool/r.h": '#include "storage/base/strong.h"\n#include <mutex>\n#include <unistd.h>',
    "cuda/r.cc": '#include "storage/pool/r.h"\n#include "cuda/driver/driver.h"\n#include <cuda.h>',
    "cuda/driver/r.cc": '#include "storage/base/strong.h"\n#include <cuda.h>',
    "daemon/core/r.h": '#include <vector>\n#include "absl/time/time.h"\n#include "storage/base/ids.h"\n#include "storage/pool/slot_allocator.h"',
    "daemon/session/r.cc": '#include "daemon/core/r.h"\n#include "cuda/r.h"\n#include "proto/session.pb.h"\n#include <thread>',
    "daemon/rpc/r.cc": '#include "proto/node.grpc.pb.h"\n#include <grpcpp/grpcpp.h>\n#include "daemon/core/r.h"',
    "daemon/ctl/r.cc": '#include "proto/node.grpc.pb.h"\n#include <CLI/CLI.hpp>',
    "daemon/wiring.cc": '#include "daemon/session/r.h"\n#include "daemon/rpc/r.h"\n#include "daemon/config.h"\n#include "cuda/r.h"',
    "connector/src/r.cc": '#include "connector/src/r.h"\n#include <kvist/kvist.h>\n#include "storage/base/shm/ring.h"\n#include "proto/session.pb.h"',
    "connector/include/kvist/r.h": "#include <stdint.h>\n#include <memory>\n#include <kvist/kvist.h>",
    "examples/tinyllm/r.cc": '#include <kvist/client.h>\n#include "examples/tinyllm/model.h"\n#include <zlib.h>',
    "tests/unit/r.cc": '#include "daemon/session/r.h"\n#include "connector/src/r.h"\n#include <grpcpp/grpcpp.h>\n#include <thread>',
}

LISTS_WRONG = {  # file -> (text, words of the complaint)
    "storage/base/CMakeLists.txt": ("kvist_library(kvist_base SOURCES a.cc LINK absl::status kvist_pool)", "storage/pool"),
    "storage/pool/CMakeLists.txt": ("kvist_library(kvist_pool SOURCES a.cc LINK kvist_base protobuf::libprotobuf)", "protobuf"),
    "daemon/session/CMakeLists.txt": ("kvist_library(kvist_session SOURCES a.cc\n  LINK kvist_base kvist_rpc)", "daemon/rpc"),
    "connector/CMakeLists.txt": ("add_library(kvist SHARED)\ntarget_link_libraries(kvist PRIVATE kvist_base kvist_session)", "daemon/session"),
    "examples/CMakeLists.txt": ("kvist_executable(tinyllm SOURCES m.cc LINK kvist kvist_base)", "storage/base"),
}
LISTS_RIGHT = {
    "daemon/rpc/CMakeLists.txt": "kvist_library(kvist_rpc SOURCES a.cc LINK kvist_base kvist_pool PkgConfig::GRPC)",
    "examples/replay/CMakeLists.txt": "kvist_executable(kvist-replay SOURCES m.cc LINK kvist ZLIB::ZLIB)",
    "tests/bench/CMakeLists.txt": "kvist_executable(kvist-bench SOURCES m.cc LINK kvist kvist_rpc kvist_pool)",
}


def plant(root, files):
    for name, text in files.items():
        path = pathlib.Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


class LayeringTest(unittest.TestCase):
    def test_every_planted_wrong_include_is_found_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as root:
            plant(root, RIGHT)
            plant(root, WRONG)
            found = {line.split(":")[0] for line in layering.wrong_arrows(root)}
            self.assertEqual(found, set(WRONG))

    def test_every_planted_wrong_link_is_found_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as root:
            plant(root, {name: text for name, (text, _) in LISTS_WRONG.items()})
            plant(root, LISTS_RIGHT)
            found = layering.wrong_arrows(root)
            self.assertEqual({line.split(":")[0] for line in found}, set(LISTS_WRONG))
            for name, (_, words) in LISTS_WRONG.items():
                self.assertTrue(any(line.startswith(name) and words in line for line in found), (name, words, found))

    def test_a_complaint_names_the_line(self):
        with tempfile.TemporaryDirectory() as root:
            plant(root, {"cuda/x.cc": "// one\n// two\n#include <grpcpp/grpcpp.h>"})
            self.assertTrue(layering.wrong_arrows(root)[0].startswith("cuda/x.cc:3: "))


if __name__ == "__main__":
    unittest.main()
