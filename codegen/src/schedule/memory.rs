//! Where the tiles of a scheduled kernel lie in shared memory.

use super::parts::ROW_BYTES;
use crate::ir::{Buffer, BufferId, Kernel, MemoryLayout};

/// Address alignment of swizzled tiles: the pattern repeats every 8 rows of 128 bytes.
const SWIZZLE_ALIGN: usize = 1024;

/// `(bits, base, shift)` of the swizzle of 16-byte pieces over rows of this many bytes; none below 32.
pub fn swizzle_of(row_bytes: usize) -> Option<(u32, u32, u32)> {
    match row_bytes {
        128 => Some((3, 4, 3)),
        64 => Some((2, 4, 3)),
        32 => Some((1, 4, 3)),
        _ => None,
    }
}

/// The layout of an operand tile `[slots, rows, depth]` for the matrix unit: rows of 128 bytes, in panels if K is longer.
pub fn operand_layout(b: &Buffer) -> MemoryLayout {
    let [_, rows, depth] = b.extents[..] else {
        return MemoryLayout { strides: vec![], swizzle: None, panel: None, offset_bytes: 0 };
    };
    let panel = ROW_BYTES * 8 / b.dtype.bits();
    MemoryLayout {
        strides: vec![rows * depth, panel.min(depth), 1],
        swizzle: swizzle_of(ROW_BYTES),
        panel: (depth > panel).then_some(panel),
        offset_bytes: 0,
    }
}

/// The layout of a staging tile `[instances, rows, columns]`: panels of the widest box that divides the columns.
pub fn staging_layout(b: &Buffer) -> MemoryLayout {
    let [_, rows, columns] = b.extents[..] else {
        return MemoryLayout { strides: vec![], swizzle: None, panel: None, offset_bytes: 0 };
    };
    let panel = staging_panel(columns, b.dtype.bits());
    MemoryLayout {
        strides: vec![rows * columns, panel, 1],
        swizzle: swizzle_of(panel * b.dtype.bits() / 8),
        panel: (columns > panel).then_some(panel),
        offset_bytes: 0,
    }
}

/// Columns of a box of a store: 128 bytes or the largest smaller power of two that divides the row, at least 16 bytes.
pub fn staging_panel(columns: usize, bits: usize) -> usize {
    let mut panel = ROW_BYTES * 8 / bits;
    while !columns.is_multiple_of(panel) && panel * bits > 128 {
        panel /= 2;
    }
    panel
}

/// Gives offsets to tiles in this order and returns the bytes used.
pub fn place(k: &mut Kernel, tiles: &[BufferId]) -> usize {
    let mut used = 0usize;
    for &id in tiles {
        let b = &mut k.buffers[id.0 as usize];
        let bytes = b.extents.iter().product::<usize>() * b.dtype.bits() / 8;
        let Some(m) = &mut b.memory else { continue };
        let align = if m.swizzle.is_some() { SWIZZLE_ALIGN } else { 128 };
        m.offset_bytes = used.next_multiple_of(align);
        used = m.offset_bytes + bytes;
    }
    k.shared_bytes = used;
    used
}
