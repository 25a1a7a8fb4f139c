# Every package that kvist links; all are Debian packages (deploy/install_dependencies.sh installs them).
find_package(Threads REQUIRED)
find_package(absl REQUIRED)             # absl::...
find_package(OpenSSL REQUIRED)          # OpenSSL::Crypto
find_package(Protobuf REQUIRED)         # protobuf::libprotobuf
if(KVIST_CONNECTOR_ONLY)
  return()
endif()

find_package(ZLIB REQUIRED)             # ZLIB::ZLIB, for traces
find_package(CURL REQUIRED)             # CURL::libcurl, for S3
find_package(spdlog REQUIRED)           # spdlog::spdlog
find_package(tomlplusplus REQUIRED)     # tomlplusplus::tomlplusplus
find_package(CLI11 REQUIRED)            # CLI11::CLI11
find_package(nlohmann_json REQUIRED)    # nlohmann_json::nlohmann_json

find_package(prometheus-cpp REQUIRED)     # prometheus-cpp::core

find_package(PkgConfig REQUIRED)
pkg_check_modules(GRPC REQUIRED IMPORTED_TARGET grpc++)  # PkgConfig::GRPC; the CMake files of Debian's gRPC want packages that it doesn't depend on
find_library(GRPC_REFLECTION grpc++_reflection REQUIRED)  # of libgrpc++-dev, too; it has no file for pkg-config
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)  # PkgConfig::HTTPLIB
pkg_check_modules(ROCKSDB REQUIRED IMPORTED_TARGET rocksdb)  # PkgConfig::ROCKSDB; its CMake files want packages that it doesn't depend on
pkg_check_modules(NUMA REQUIRED IMPORTED_TARGET numa)    # PkgConfig::NUMA
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)  # PkgConfig::XXHASH; checksums only, never keys
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)  # PkgConfig::ZSTD; codecs
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)  # PkgConfig::URING
pkg_check_modules(SYSTEMD REQUIRED IMPORTED_TARGET libsystemd)  # PkgConfig::SYSTEMD
