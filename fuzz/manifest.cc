// store::ParseManifest.
//
// - Every file of an accepted manifest lies inside the directory.
// - A manifest that is written reads as the same one.
// - Memory stays within a multiple of the text's size.
#include "store/manifest.h"

#include "support.h"

namespace syncline::fuzz {
namespace {

void Check(std::string_view text) {
  const MemoryWatch watch;
  const auto manifest = store::ParseManifest(text);
  Must(watch.peak() <= 65536 + 300 * text.size(), "memory is bounded by the text");
  if (!manifest) {
    Must(manifest.error().code == base::Code::kCorrupt ||
             manifest.error().code == base::Code::kIncompatible,
         "a manifest that is refused is corrupt or of another format");
    return;
  }
  for (const store::ManifestFile& file : manifest->files) {
    Must(base::IsInsidePath(file.name), "files are inside the directory");
    Must(file.sha256.size() == 64, "a file has a hash");
  }
  const std::string written = store::ManifestText(*manifest);
  const auto again = store::ParseManifest(written);
  Must(again.has_value(), "a manifest that is written can be read");
  Must(store::ManifestText(*again) == written, "a manifest survives writing");
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  syncline::fuzz::Check(syncline::fuzz::Text(data, size));
  return 0;
}
