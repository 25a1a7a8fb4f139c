#ifndef KVIST_STORAGE_BASE_LOG_SUBJECT_H_
#define KVIST_STORAGE_BASE_LOG_SUBJECT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace kvist {

// What the lines are about that this thread logs while the object lives: fields of their own where the log is made of JSON, so that
// programs needn't read prose; the messages say it to people. An inner one stands for the outer one meanwhile.
//
// These fields and no others: whoever collects logs makes an index of each. Never tokens, chunk keys, or what a client sent raw.
class LogSubject {
 public:
  static constexpr size_t kSpaceDigits = 16;

  struct Fields {
    uint64_t session = 0;     // 0: about none
    std::string tenant = {};  // as the configuration calls it, or uid:N
    std::string space = {};   // its digest in hex, of which the first digits are kept
    uint64_t job = 0;
    uint64_t pin = 0;
  };

  explicit LogSubject(Fields fields) : fields_(std::move(fields)), outer_(now_) {
    if (fields_.space.size() > kSpaceDigits) fields_.space.resize(kSpaceDigits);
    now_ = this;
  }
  ~LogSubject() { now_ = outer_; }
  LogSubject(const LogSubject&) = delete;
  LogSubject& operator=(const LogSubject&) = delete;

  // Of this thread; null: its lines are about nothing in particular.
  static const Fields* Now() { return now_ == nullptr ? nullptr : &now_->fields_; }

 private:
  static inline thread_local const LogSubject* now_ = nullptr;

  Fields fields_;
  const LogSubject* const outer_;
};

}  // namespace kvist

#endif  // KVIST_STORAGE_BASE_LOG_SUBJECT_H_
