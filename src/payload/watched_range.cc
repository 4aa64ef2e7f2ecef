// SIGBUS comes to the thread that touched the page, in the middle of that. No code of ours touches a
// watched range while it holds the lock below, so the handler may take it; what the handler calls
// besides is a system call.
#include "payload/watched_range.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <mutex>

namespace syncline::payload {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::uintptr_t, WatchedRange*> ranges;  // by their last byte's end; guarded by mutex
  struct sigaction before{};
  std::uintptr_t page = 4096;
};

// Never destroyed: the handler stays.
Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

}  // namespace

// Puts a page of zeros where `address` lies; false if nobody watches it.
bool MendPage(std::uintptr_t address) {
  Registry& registry = TheRegistry();
  const std::scoped_lock lock(registry.mutex);
  const auto found = registry.ranges.upper_bound(address);
  if (found == registry.ranges.end() || address < found->second->begin_) return false;
  found->second->broken_.store(true);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it came as a number
  void* const page = reinterpret_cast<void*>(address / registry.page * registry.page);
  return ::mmap(page, registry.page, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;  // NOLINT: a macro
}

namespace {

void OnBusError(int number, siginfo_t* info, void* context) {
  if (MendPage(reinterpret_cast<std::uintptr_t>(info->si_addr))) return;
  const struct sigaction& before = TheRegistry().before;
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    return before.sa_sigaction(number, info, context);
  }
  // Comes when this returns, and ends the process as it would have.
  ::signal(SIGBUS, SIG_DFL);
  ::raise(SIGBUS);
}

void InstallOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    Registry& registry = TheRegistry();
    registry.page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action{};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, &registry.before);
  });
}

}  // namespace

WatchedRange::WatchedRange(void* start, std::size_t size)
    : begin_(reinterpret_cast<std::uintptr_t>(start)), end_(begin_ + size) {
  InstallOnce();
  Registry& registry = TheRegistry();
  // To the end of its last page.
  end_ = (end_ + registry.page - 1) / registry.page * registry.page;
  const std::scoped_lock lock(registry.mutex);
  registry.ranges[end_] = this;
}

WatchedRange::~WatchedRange() {
  Registry& registry = TheRegistry();
  const std::scoped_lock lock(registry.mutex);
  registry.ranges.erase(end_);
}

}  // namespace syncline::payload
