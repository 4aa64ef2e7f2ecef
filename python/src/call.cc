#include "call.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace syncline::python {
namespace {

namespace nb = nanobind;

// Only how soon Ctrl-C is noticed; the end of the work is noticed at once.
constexpr std::chrono::milliseconds kSignalInterval{20};

nb::object Text(std::string_view text) {
  // Paths in messages need not be UTF-8.
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// A thread that runs one function, and the news of its end.
class Worker {
 public:
  explicit Worker(std::function<void()> work)
      : work_(std::move(work)), thread_([this] {
          try {
            work_();
          } catch (...) {
            thrown_ = std::current_exception();
          }
          const std::scoped_lock lock(mutex_);
          ended_ = true;
          end_.notify_all();
        }) {}
  ~Worker() { thread_.join(); }

  bool WaitFor(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return end_.wait_for(lock, time, [this] { return ended_; });
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    end_.wait(lock, [this] { return ended_; });
  }
  // After the end.
  std::exception_ptr thrown() const { return thrown_; }

 private:
  std::function<void()> work_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::exception_ptr thrown_;
  std::thread thread_;  // the last member: starts when the others are there
};

// Returns what a signal handler raised meanwhile, or null.
std::exception_ptr Await(Worker& worker, base::CancelToken& cancel) {
  while (true) {
    {
      const nb::gil_scoped_release release;
      if (worker.WaitFor(kSignalInterval)) return nullptr;
    }
    if (PyErr_CheckSignals() == 0) continue;
    std::exception_ptr raised = std::make_exception_ptr(nb::python_error());
    cancel.Cancel();
    {
      const nb::gil_scoped_release release;
      worker.Wait();
    }
    return raised;
  }
}

}  // namespace

void Raise(const base::Error& error) {
  const nb::object raised =
      nb::module_::import_("syncline.errors")
          .attr("from_code")(Text(Info(error.code).name), Text(error.message));
  PyErr_SetObject(raised.type().ptr(), raised.ptr());
  throw nb::python_error();
}

void RunInterruptibly(base::CancelToken& cancel, const std::function<void()>& work) {
  std::exception_ptr raised;
  std::exception_ptr thrown;
  try {
    Worker worker(work);
    raised = Await(worker, cancel);
    thrown = worker.thrown();
  } catch (const std::system_error& error) {
    Raise({base::Code::kInternal, std::string("cannot start a thread: ") + error.what()});
  }
  if (raised) std::rethrow_exception(raised);
  if (!thrown) return;
  std::string fault = "unknown exception";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    throw;  // nanobind makes it a MemoryError
  } catch (const std::exception& error) {
    fault = error.what();
  } catch (...) {
  }
  Raise({base::Code::kInternal, fault});
}

}  // namespace syncline::python
