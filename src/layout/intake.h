// Takes the tensors of one update as a trainer sends them: in any order, a few at a time, and says
// what is missing when all should be there.
//
// A tensor goes to its place when it comes, whatever else of a fused parameter has come, so nothing
// depends on how an update is cut into messages. A message is checked as a whole before any of it is
// written.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "layout/forms.h"
#include "layout/plan.h"

namespace syncline::layout {

// A tensor of a message. `bytes` are row-major, and may lie at any address.
struct Arrival {
  std::string_view name;
  tensor::Dtype dtype = tensor::Dtype::kBF16;
  tensor::Shape shape;
  base::ByteSpan bytes;
};

// What an arrival is for.
struct Claim {
  enum class Kind : std::uint8_t {
    kTensor,     // a tensor of the plan
    kTwin,       // another name of one (the head of a tied model)
    kParameter,  // a whole parameter, under the engine's own name
    kSkipped,    // a rule of the plan leaves it out
    kUnknown,
  };
  Kind kind = Kind::kUnknown;
  std::size_t index = Plan::npos;  // of the tensor or parameter
  bool other_form = false;         // is converted (forms.h)
};

struct IntakeReport {
  std::uint64_t received = 0;         // tensors
  std::uint64_t written = 0;          // of the model, each counted once
  std::uint64_t skipped = 0;          // that a rule of the plan leaves out
  std::uint64_t unknown = 0;          // that nothing claims
  std::uint64_t converted = 0;        // that came in another form
  std::uint64_t bytes = 0;            // of those written
  std::vector<std::string> unknowns;  // the first few of their names
};

// Not thread-safe.
class Intake {
 public:
  // All must outlive it. `parameters`: the memory of each, as in Plan::Scatter; where it lies may
  // change between two calls. `forms` may be null.
  Intake(const Plan& plan, std::span<const base::MutableByteSpan> parameters,
         const Forms* forms = nullptr);

  // What each arrival of a message is for. Wrapper components of names (tensor_names.h) are left
  // out. Writes nothing.
  //   kInvalidArgument  wrong dtype, shape or number of bytes
  //   kAlreadyExists    two names that differ only in wrappers; the same tensor twice
  base::Result<std::vector<Claim>> Find(std::span<const Arrival> message) const;
  // The same for names of parameters in their load layout: kNotFound for any other name.
  base::Result<std::vector<Claim>> FindParameters(std::span<const Arrival> message) const;
  // Why nothing claims this one: as Plan::Match. For arrivals that Find gives as kUnknown.
  base::Error WhyUnknown(const Arrival& arrival) const;

  // Parameters that a message writes to, each once, in ascending order.
  std::vector<std::size_t> Targets(std::span<const Claim> claims) const;

  // Writes a message with the claims that Find gave for it. A tensor that comes again replaces what
  // came before. What is unknown is counted. After an error the content of the parameters that the
  // message goes to is undefined:
  //   kInvalidArgument   a form that cannot be what it says
  //   kChecksumMismatch  a tensor that must equal another (the head of a tied model) does not
  base::Status Write(std::span<const Arrival> message, std::span<const Claim> claims,
                     base::ThreadPool& pool);

  // Has this tensor of the plan come?
  bool Came(std::size_t tensor) const { return !names_[tensor].empty(); }
  // As if it had not come.
  void Forget(std::size_t tensor) { names_[tensor].clear(); }
  // As if every tensor had come under its own name (they were read from a checkpoint).
  void NoteAll();

  // The tensors of a parameter.
  const std::vector<std::size_t>& TensorsOf(std::size_t parameter) const {
    return tensors_of_[parameter];
  }

  // Has every tensor of the model come? kNotFound names those that are missing, with the parameter
  // that waits for them. Makes the padding zero.
  base::Status Finish() const;

  const IntakeReport& report() const { return report_; }

 private:
  struct Job;

  base::Result<Claim> FindOne(const Arrival& arrival) const;
  void AddJobs(std::size_t number, const Arrival& arrival, const Claim& claim,
               std::vector<Job>& jobs) const;
  base::Status WriteOne(const Arrival& arrival, const Claim& claim) const;
  base::Status CompareTwin(const Arrival& arrival, const Claim& claim) const;
  void Note(const Arrival& arrival, const Claim& claim);

  const Plan& plan_;
  std::span<const base::MutableByteSpan> parameters_;
  const Forms* forms_;
  std::vector<std::string> names_;  // by tensor, the name under which it came; empty: not yet
  std::vector<std::vector<std::size_t>> tensors_of_;  // by parameter
  IntakeReport report_;
};

}  // namespace syncline::layout
