// Which paths and stores a request may name (--allowed-root, --allowed-source).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/rooted_file_system.h"
#include "serve/options.h"

namespace syncline::serve {

// Immutable, thread-safe. Looks at the file system, so not for a server's own thread.
class PathRules {
 public:
  PathRules() = default;  // everything is allowed
  // `files`, which must outlive this, knows the roots. `sources`: what URLs of stores that are not
  // on this host begin with.
  PathRules(base::RootedFileSystem& files, std::vector<std::string> sources)
      : files_(&files), sources_(std::move(sources)) {}

  // For what a request names: refuses what leads outside, also inside a directory that is allowed.
  base::FileSystem& files() const;

  // kPermissionDenied names the field, the path, and what is allowed.
  base::Status CheckPath(std::string_view field, const std::string& path) const;
  // A path, file:///path, or a URL. Of a URL only whole parts count: "s3://b/x" allows "s3://b/x/y"
  // and not "s3://b/xy".
  base::Status CheckSource(std::string_view field, const std::string& source) const;

 private:
  bool IsAllowedUrl(std::string_view url) const;

  base::RootedFileSystem* files_ = nullptr;  // null: everything is allowed
  std::vector<std::string> sources_;
};

// The file system of options.allowed_roots, in which the checkpoint that the engine was started with
// may be read too; null where there are no roots. kInvalidArgument for a root that is no directory.
base::Result<std::unique_ptr<base::RootedFileSystem>> RootedFilesOf(const Options& options);

}  // namespace syncline::serve
