// Collectives over a mesh of connections (ranks/mesh.h), on fp32 tensors in CPU memory.
#pragma once

#include <cstdint>
#include <memory>

namespace syncline::ranks {
class Mesh;
}

namespace syncline::model {

class Collectives;

// `mesh` is connected and must outlive it; rank `rank` of `size`. Sums are added up in the order of
// the ranks, by all ranks or by one for all, so they are the same bits everywhere and every time.
std::unique_ptr<Collectives> MakeMeshCollectives(ranks::Mesh& mesh, std::uint32_t rank,
                                                 std::uint32_t size);

}  // namespace syncline::model
