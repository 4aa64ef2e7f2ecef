#include <algorithm>

#include "checker/checker.h"
#include "store/file_hash.h"

namespace syncline::checker {

std::string OverallChecksum(std::vector<NamedHash> hashes) {
  std::ranges::sort(hashes, {}, &NamedHash::name);
  store::Sha256 sha;
  for (const NamedHash& hash : hashes) {
    sha.Update(base::AsBytes(hash.name));
    sha.Update(base::AsBytes(hash.hash));
  }
  return sha.Hex();
}

}  // namespace syncline::checker
