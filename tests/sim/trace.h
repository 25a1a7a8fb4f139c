#ifndef KVIST_TESTS_SIM_TRACE_H_
#define KVIST_TESTS_SIM_TRACE_H_

#include <string>

#include "daemon/core/effects.h"
#include "daemon/core/events.h"

namespace kvist::sim {

// One line for people, and complete enough that equal runs are told from different ones by it.
std::string Print(const core::SessionOpened& e);
std::string Print(const core::SessionClosed& e);
std::string Print(const core::LookupAsked& e);
std::string Print(const core::ReleaseAsked& e);
std::string Print(const core::LoadAsked& e);
std::string Print(const core::StoreAsked& e);
std::string Print(const core::PinAsked& e);
std::string Print(const core::OperatorPinAsked& e);
std::string Print(const core::UnpinAsked& e);
std::string Print(const core::PinRemoved& e);
std::string Print(const core::HintAsked& e);
std::string Print(const core::AllocateAsked& e);
std::string Print(const core::FreeAsked& e);
std::string Print(const core::SwapAsked& e);
std::string Print(const core::CancelAsked& e);
std::string Print(const core::CopyFinished& e);
std::string Print(const core::ClearAsked& e);
std::string Print(const core::PromptClearAsked& e);
std::string Print(const core::MoveAsked& e);
std::string Print(const core::JobCancelAsked& e);
std::string Print(const core::SlotsCopied& e);
std::string Print(const core::Tick& e);
std::string Print(const core::Effect& e);

}  // namespace kvist::sim

#endif  // KVIST_TESTS_SIM_TRACE_H_
