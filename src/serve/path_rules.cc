#include "serve/path_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "objects/object_store.h"
#include "objects/url.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::Status;

// Does a part of the path, decoded or not, go up? Servers and libraries differ in what they make of
// it.
bool HasDots(std::string_view url) {
  std::string_view path = url.substr(0, url.find('?'));
  while (true) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    const std::string decoded = objects::PercentDecode(part).value_or("..");
    if (decoded == "." || decoded == "..") return true;
    if (decoded.find_first_of("/\\") != std::string::npos) return true;
    if (slash == std::string_view::npos) return false;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace

bool PathRules::IsAllowedUrl(std::string_view url) const {
  if (HasDots(url)) return false;
  return std::ranges::any_of(sources_, [&](std::string_view allowed) {
    if (!url.starts_with(allowed)) return false;
    const std::string_view rest = url.substr(allowed.size());
    return rest.empty() || allowed.ends_with('/') || rest.front() == '/' || rest.front() == '?';
  });
}

base::FileSystem& PathRules::files() const {
  return files_ == nullptr ? base::FileSystem::Posix() : *files_;
}

Status PathRules::CheckPath(std::string_view field, const std::string& path) const {
  if (files_ == nullptr) return {};
  const Status allowed = files_->Check(path);
  return allowed ? allowed : base::Annotate(allowed.error(), field);
}

Status PathRules::CheckSource(std::string_view field, const std::string& source) const {
  if (files_ == nullptr) return {};
  if (!objects::IsRemote(source)) {
    if (objects::SchemeOf(source).empty()) return CheckPath(field, source);
    auto path = objects::PathOfFileUrl(source);
    if (!path) return base::Annotate(path.error(), field);
    return CheckPath(field, *path);
  }
  if (IsAllowedUrl(source)) return {};
  return Fail(
      Code::kPermissionDenied,
      fmt::format("{}: {} is outside of what is allowed: {}", field, objects::Redact(source),
                  sources_.empty() ? "no store but on this host (--allowed-source)"
                                   : fmt::format("{}", fmt::join(sources_, ", "))));
}

base::Result<std::unique_ptr<base::RootedFileSystem>> RootedFilesOf(const Options& options) {
  if (options.allowed_roots.empty()) return nullptr;
  auto files = base::RootedFileSystem::Make(
      base::FileSystem::Posix(), {.roots = options.allowed_roots, .readable = {options.model}});
  if (!files) return base::Annotate(files.error(), "--allowed-root");
  return files;
}

}  // namespace syncline::serve
