//! Groups are named by integers.
use dsl::prelude::*;

#[kernel]
fn k(group: In![F32; m], y: Out![F32; m, n]) {
    for (_, rows, ni) in tile_loop_grouped(Groups::contiguous(group, 4usize), 16, n.div_ceil(16), Raster::rows()) {
        let t = frag::<F32, 2>([16, 16]);
        zero(t);
        copy(t, y.at((rows.start(), ni * 16)));
    }
}

fn main() {}
