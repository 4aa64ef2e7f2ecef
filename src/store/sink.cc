#include "store/sink.h"

#include <utility>

#include "store/directory_sink.h"
#include "store/object_sink.h"

namespace syncline::store {

base::Result<std::unique_ptr<Sink>> OpenSink(base::FileSystem& files, const std::string& store,
                                             const SinkOptions& options) {
  SYNCLINE_ASSIGN(std::unique_ptr<objects::ObjectStore> objects,
                  objects::Open(files, store, options.objects));
  if (!objects->local_path().empty()) {
    return OpenDirectorySink(files, objects->local_path(), options.durable, options.exclusive);
  }
  return OpenObjectSink(files, std::move(objects), options.work_directory);
}

}  // namespace syncline::store
