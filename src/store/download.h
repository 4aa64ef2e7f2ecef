// One file on its way from an object store to a local directory, in pieces, so that an interrupted
// fetch can go on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "base/pool.h"
#include "base/progress.h"
#include "objects/object_store.h"
#include "store/file_hash.h"

namespace syncline::store {

struct FetchFile {
  std::uint64_t version = 0;  // that it belongs to
  std::string key;            // in the store
  std::string path;           // where it goes; its directory is there
  std::uint64_t bytes = 0;
  std::string sha256;      // empty: not known
  bool may_appear = true;  // otherwise it is there at once, or is not asked for again
};

// A file in the making is PATH.part at its full size with PATH.done beside it, which has the tag
// and size of the object and one byte for each piece that is there. A file that has its SHA-256 (or
// of which none is known, its size) gets its name. No file is open between the calls.
class Download {
 public:
  static constexpr std::uint64_t kPieceBytes = 8 << 20;

  // `files` must outlive it.
  Download(FetchFile wanted, base::FileSystem& files);

  const FetchFile& wanted() const { return wanted_; }
  std::uint64_t piece_count() const { return pieces_; }
  // Of all but the last piece kPieceBytes.
  std::uint64_t PieceBytes(std::uint64_t piece) const;

  // Has it its name already? Then there is nothing to do but OpenContent.
  base::Result<bool> IsThere() const;

  // Asks the store for the object: '1' for each piece that an earlier fetch of the very same object
  // has left, '0' for the others. kCorrupt if it has another size than is wanted. May be called
  // again, to begin anew if the object is another one now; not while pieces are fetched or hashed.
  base::Result<std::string> Open(objects::ObjectStore& store, const base::CancelToken* cancel);

  // Several threads may fetch different pieces at a time.
  base::Status FetchPiece(objects::ObjectStore& store, std::uint64_t piece, base::Buffer& buffer,
                          base::Progress& progress, const base::CancelToken* cancel) const;
  // To be called for all pieces that have been fetched in ascending order since Open, then Finish.
  // One thread at a time.
  base::Status HashPiece(std::uint64_t piece, base::Buffer& buffer);
  // Gives the file its name. With a wrong SHA-256 it is removed: kChecksumMismatch names the
  // object, with expected and actual.
  base::Status Finish(const objects::ObjectStore& store);

  // To be read, as far as it has come. Stays the same file when it gets its name, or begins anew.
  // finished: it has its name, as IsThere or Finish said. Thread-safe.
  base::Result<std::unique_ptr<base::File>> OpenContent(bool finished) const;

 private:
  std::string PartPath() const { return wanted_.path + ".part"; }
  std::string DonePath() const { return wanted_.path + ".done"; }

  FetchFile wanted_;
  base::FileSystem& files_;
  std::uint64_t pieces_;
  std::string tag_;               // of the object
  std::size_t header_bytes_ = 0;  // of PATH.done, before its pieces
  Sha256 sha256_;
};

}  // namespace syncline::store
