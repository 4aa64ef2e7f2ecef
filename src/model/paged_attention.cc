#include "model/paged_attention.h"

#include <algorithm>
#include <cstring>

#include "model/cpu_attention.h"
#include "model/parallel.h"

namespace syncline::model {
namespace {

using Task = PagedAttention::Task;

constexpr std::int64_t kPart = kAttentionPart;
// Rows of a piece that read a part of keys and values while it is in the cache.
constexpr std::int64_t kTileRows = 16;

std::size_t Size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Tokens of the task's parts that row `i` of it sees.
std::int64_t TokensOf(const Task& task, std::int64_t i) {
  return std::clamp<std::int64_t>(task.context + i - task.first_part * kPart, 0,
                                  task.parts * kPart);
}

// All parts that the task's rows have.
std::int64_t PartsOf(const Task& task) {
  return (task.context + task.rows - 1 + kPart - 1) / kPart;
}

// Computes units on one thread.
template <typename T>
class Worker {
 public:
  // `row_size`: elements from the queries of one row to those of the next.
  Worker(const AttentionSizes& sizes, const T* queries, std::int64_t row_size, const KvLayer& layer,
         T* out)
      : sizes_(sizes),
        group_(sizes.heads / sizes.kv_heads),
        queries_(queries),
        row_size_(row_size),
        keys_(static_cast<const T*>(layer.keys.const_data_ptr())),
        values_(static_cast<const T*>(layer.values.const_data_ptr())),
        out_(out) {}

  // Floats of the result of one part of a task and one key head.
  static std::int64_t ResultFloats(const AttentionSizes& sizes, const Task& task) {
    return task.rows * (sizes.heads / sizes.kv_heads) * (sizes.head_size + 2);
  }

  // `results`: all of them. `next`: the task after this one, or null.
  void Compute(const Task& task, std::int64_t head, const Task* next, float* results) {
    const std::int64_t part_floats = ResultFloats(sizes_, task);
    if (task.result < 0) own_results_.resize(Size(part_floats * task.parts));
    float* result = task.result < 0 ? own_results_.data()
                                    : results + task.result + head * part_floats * PartsOf(task);
    const T* query = Queries(task, head);
    for (std::int64_t part = task.first_part; part < task.first_part + task.parts; ++part) {
      PrepareFetch(task, head, part, next);
      ComputePart(task, head, part, query, result + (part - FirstResult(task)) * part_floats);
    }
    if (task.result < 0) Merge(task, head, result);
  }

  // `result`: of the first part and this head.
  void Merge(const Task& task, std::int64_t head, float* result) {
    const std::int64_t stride = ResultFloats(sizes_, task);
    for (std::int64_t i = 0; i < task.rows; ++i) {
      const std::int64_t parts = (task.context + i + kPart - 1) / kPart;
      MergeParts(Results(result, task.rows, i), Size(parts), Size(stride), Size(group_),
                 Size(sizes_.head_size),
                 out_ + ((task.row + i) * sizes_.kv_heads + head) * group_ * sizes_.head_size);
    }
  }

 private:
  // Which part the results begin with.
  static std::int64_t FirstResult(const Task& task) {
    return task.result < 0 ? task.first_part : 0;
  }

  PartResult Results(float* result, std::int64_t rows, std::int64_t row) const {
    const std::int64_t heads = rows * group_;
    return {.mixed = result + row * group_ * sizes_.head_size,
            .highest = result + heads * sizes_.head_size + row * group_,
            .sums = result + heads * (sizes_.head_size + 1) + row * group_};
  }

  // The queries of a key head, [rows · group, head_size].
  const T* Queries(const Task& task, std::int64_t head) {
    const std::int64_t size = group_ * sizes_.head_size;
    const T* first = queries_ + task.row * row_size_ + head * size;
    if (task.rows == 1) return first;
    own_queries_.resize(Size(task.rows * size));
    for (std::int64_t i = 0; i < task.rows; ++i) {
      std::copy_n(first + i * row_size_, size, own_queries_.data() + i * size);
    }
    return own_queries_.data();
  }

  // While a part is computed, what comes after it is fetched: all key heads of it, as they lie side
  // by side. So a task of a single part does it once for all its key heads, which come one after
  // the other.
  void PrepareFetch(const Task& task, std::int64_t head, std::int64_t part, const Task* next) {
    const bool last = part + 1 == task.first_part + task.parts;
    if (fetched_ == &task && task.parts == 1) return;
    fetched_ = &task;
    next_ = {};
    const Task* from = last ? next : &task;
    if (from == nullptr) return;
    const std::int64_t next_part = last ? from->first_part : part + 1;
    const std::int64_t tokens = std::min(kPart, from->context + from->rows - 1 - next_part * kPart);
    const std::int64_t passes = task.parts == 1 ? sizes_.kv_heads - head : 1;
    const std::int64_t here = std::min(kPart, task.context - part * kPart);
    next_ = BlockFetcher(keys_, values_, from->blocks + next_part * (kPart / kKvBlock),
                         Size((tokens + kKvBlock - 1) / kKvBlock),
                         Size(kKvBlock * sizes_.kv_heads * sizes_.head_size) * sizeof(T),
                         FetchSteps(Size(std::max<std::int64_t>(1, here))) * Size(passes));
  }

  void ComputePart(const Task& task, std::int64_t head, std::int64_t part, const T* query,
                   float* result) {
    // The first rows may end before this part.
    const std::int64_t skipped = std::max<std::int64_t>(0, part * kPart + 1 - task.context);
    AttendPart({.query = query + skipped * group_ * sizes_.head_size,
                .positions = Size(task.rows - skipped),
                .group = Size(group_),
                .head_size = Size(sizes_.head_size),
                .keys = keys_ + head * sizes_.head_size,
                .values = values_ + head * sizes_.head_size,
                .slot_stride = Size(sizes_.kv_heads * sizes_.head_size),
                .blocks = task.blocks + part * (kPart / kKvBlock),
                .tokens = Size(task.context + skipped - part * kPart),
                .scale = static_cast<float>(sizes_.Scale())},
               next_, Results(result, task.rows, skipped));
  }

  const AttentionSizes& sizes_;
  const std::int64_t group_;
  const T* queries_;
  const std::int64_t row_size_;
  const T* keys_;
  const T* values_;
  T* out_;
  std::vector<float> own_results_;
  std::vector<T> own_queries_;
  BlockFetcher next_;
  const Task* fetched_ = nullptr;  // task that next_ was made for
};

}  // namespace

void PagedAttention::AddTask(const Task& task) {
  std::int64_t cost = cost_until_.empty() ? 0 : cost_until_.back();
  for (std::int64_t i = 0; i < task.rows; ++i) cost += TokensOf(task, i);
  tasks_.push_back(task);
  cost_until_.push_back(cost);
}

void PagedAttention::Add(const SequenceSlice& sequence) {
  for (std::int64_t i = 0; i < sequence.length; i += kTileRows) {
    Task task{.row = sequence.begin + i,
              .rows = std::min(kTileRows, sequence.length - i),
              .context = std::int64_t{sequence.context} - sequence.length + i + 1,
              .blocks = sequence.blocks.data()};
    const std::int64_t parts = PartsOf(task);
    if (parts == 1 || sequence.length > kTileRows) {
      task.parts = parts;
      AddTask(task);
      continue;
    }
    // A few rows with a long context: several threads share them.
    task.result = static_cast<std::int64_t>(results_.size());
    results_.resize(results_.size() +
                    Size(parts * sizes_.kv_heads * Worker<float>::ResultFloats(sizes_, task)));
    task.parts = 1;
    for (task.first_part = 0; task.first_part < parts; ++task.first_part) AddTask(task);
    divided_.push_back(task);
  }
}

std::int64_t PagedAttention::UnitAt(std::int64_t cost) const {
  const auto end = std::upper_bound(cost_until_.begin(), cost_until_.end(), cost / sizes_.kv_heads);
  const std::int64_t task = end - cost_until_.begin();
  if (end == cost_until_.end()) return task * sizes_.kv_heads;
  const std::int64_t before = task == 0 ? 0 : cost_until_[Size(task - 1)];
  const std::int64_t inside = cost - before * sizes_.kv_heads;
  return task * sizes_.kv_heads + (inside + *end - before - 1) / (*end - before);
}

template <typename T>
void PagedAttention::Attend(const T* queries, std::int64_t row_size, const KvLayer& layer, T* out) {
  const auto tasks = static_cast<std::int64_t>(tasks_.size());
  const auto run = [&](std::int64_t first, std::int64_t last) {
    Worker<T> worker(sizes_, queries, row_size, layer, out);
    for (std::int64_t unit = first; unit < last; ++unit) {
      const std::int64_t task = unit / sizes_.kv_heads;
      worker.Compute(tasks_[Size(task)], unit % sizes_.kv_heads,
                     task + 1 < tasks ? &tasks_[Size(task + 1)] : nullptr, results_.data());
    }
  };
  // Threads get equal costs, not equal numbers of units.
  const std::int64_t total = cost_until_.back() * sizes_.kv_heads;
  const std::int64_t threads = at::get_num_threads();
  const std::int64_t group = sizes_.heads / sizes_.kv_heads;
  ParallelFor(threads, total / threads * sizes_.head_size * (group + 2) / 32,
              [&](std::int64_t first, std::int64_t last) {
                run(UnitAt(total * first / threads), UnitAt(total * last / threads));
              });

  Worker<T> worker(sizes_, queries, row_size, layer, out);
  for (const Task& task : divided_) {
    const std::int64_t parts = PartsOf(task);
    for (std::int64_t head = 0; head < sizes_.kv_heads; ++head) {
      worker.Merge(
          task, head,
          results_.data() + task.result + head * parts * Worker<T>::ResultFloats(sizes_, task));
    }
  }
}

void PagedAttention::Attend(const at::Tensor& queries, const KvLayer& layer,
                            const at::Tensor& out) {
  if (tasks_.empty()) return;
  if (queries.scalar_type() == at::kFloat) {
    Attend(static_cast<const float*>(queries.const_data_ptr()), queries.size(1), layer,
           static_cast<float*>(out.mutable_data_ptr()));
  } else {
    Attend(static_cast<const Bf16*>(queries.const_data_ptr()), queries.size(1), layer,
           static_cast<Bf16*>(out.mutable_data_ptr()));
  }
}

}  // namespace syncline::model
