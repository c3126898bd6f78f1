//! What element accesses touch: typed tiles of one worker, and global tensors on host memory.
//!
//! Lanes come in three classes: f32 for every float format, i32 for integers of up to 32 bits and Bool, i64. Tiles are
//! kept in their class, decoded, unless a view reinterprets their bytes. Nothing here checks views; callers have.

use super::{convert, simd};
use crate::formats;
use crate::host_memory::HostMemory;
use crate::ir::DType;

/// Class of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Floats of every format, as f32.
    F,
    /// Integers of up to 32 bits and Bool, sign or zero extended; U32 as its bit pattern.
    I,
    /// 64-bit integers.
    L,
}

/// Class of a dtype.
pub fn class_of(dtype: DType) -> Class {
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::E2m1 | DType::E8m0 => Class::F,
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::Bool => Class::I,
        DType::I64 => Class::L,
    }
}

/// Contents of a tile.
#[derive(Debug)]
pub enum Tile {
    /// Not used by this kernel as a tile.
    None,
    /// Decoded floats.
    F(Vec<f32>),
    /// Decoded integers.
    I(Vec<i32>),
    /// 64-bit integers.
    L(Vec<i64>),
    /// Raw little-endian bytes, for tiles that views reinterpret.
    Bytes(Vec<u8>),
}

impl Tile {
    /// Makes the content undefined: floats become a NaN, the rest a pattern that is unlikely to pass for data.
    pub fn poison(&mut self, dtype: DType) {
        match self {
            Tile::None => {}
            Tile::F(v) => v.fill(f32::from_bits(0x7fc0_dead)),
            Tile::I(v) => v.fill(convert::wrap(dtype, 0x5a5a_5a5a)),
            Tile::L(v) => v.fill(0x5a5a_5a5a_5a5a_5a5a),
            Tile::Bytes(v) => v.fill(0x5a),
        }
    }
}

/// A tensor parameter: the bytes from its first element to the end of its allocation.
#[derive(Clone, Copy, Debug)]
pub struct Global<'a> {
    /// The allocation.
    pub memory: &'a HostMemory,
    /// Byte of element 0.
    pub offset: usize,
}

impl Global<'_> {
    /// True if elements `first..=last` of `dtype` lie in the allocation.
    pub fn holds(&self, dtype: DType, first: i64, last: i64) -> bool {
        let end = (last as i128 + 1) * dtype.bits() as i128;
        first >= 0 && end <= (self.memory.len_bytes() as i128 - self.offset as i128) * 8
    }
    /// Bit pattern of one element.
    pub fn get(&self, dtype: DType, at: usize) -> u64 {
        let bits = dtype.bits();
        let bit = self.offset * 8 + at * bits;
        if bit % 64 + bits <= 64 {
            self.memory.load_bits(bit, bits)
        } else {
            let mut b = [0; 8];
            self.memory.read(bit / 8, &mut b[..bits / 8]);
            u64::from_le_bytes(b)
        }
    }
    /// Stores the bit pattern of one element.
    pub fn put(&self, dtype: DType, at: usize, value: u64) {
        let bits = dtype.bits();
        let bit = self.offset * 8 + at * bits;
        if bits == 4 {
            self.memory.store_bits(bit, bits, value);
        } else {
            self.memory.write(bit / 8, &value.to_le_bytes()[..bits / 8]);
        }
    }
}

/// A lane type.
pub trait Lane: Copy + Default + PartialEq + PartialOrd + 'static {
    /// Its registers.
    fn regs(r: &Regs) -> &[Vec<Self>];
    /// Its registers, to change.
    fn regs_mut(r: &mut Regs) -> &mut [Vec<Self>];
    /// A tile of this class.
    fn tile(t: &Tile) -> Option<&[Self]>;
    /// A tile of this class, to change.
    fn tile_mut(t: &mut Tile) -> Option<&mut [Self]>;
    /// Lane of a bit pattern.
    fn from_bits(dtype: DType, bits: u64) -> Self;
    /// Bit pattern of a lane.
    fn to_bits(dtype: DType, x: Self) -> u64;
    /// Decodes whole-byte elements.
    fn from_bytes(dtype: DType, bytes: &[u8], out: &mut [Self]);
    /// Encodes whole-byte elements.
    fn to_bytes(dtype: DType, x: &[Self], bytes: &mut [u8]);
    /// Decodes elements of half a byte, from the first of `bytes` on, which is skipped if `odd`.
    fn from_nibbles(dtype: DType, bytes: &[u8], odd: usize, out: &mut [Self]);
    /// Rounds to a float format what is held exactly enough for it.
    #[inline(always)]
    fn round(_dtype: DType, _x: &mut [Self]) {}
    /// Decodes elements that fill whole 64-bit words straight from them; false if this dtype goes through bytes.
    #[inline(always)]
    fn from_words(_dtype: DType, _memory: &HostMemory, _first: usize, _out: &mut [Self]) -> bool {
        false
    }
    /// Encodes elements that fill whole 64-bit words straight into them; false if this dtype goes through bytes.
    #[inline(always)]
    fn to_words(_dtype: DType, _memory: &HostMemory, _first: usize, _x: &[Self]) -> bool {
        false
    }
}

impl Lane for f32 {
    fn regs(r: &Regs) -> &[Vec<f32>] {
        &r.f
    }
    fn regs_mut(r: &mut Regs) -> &mut [Vec<f32>] {
        &mut r.f
    }
    fn tile(t: &Tile) -> Option<&[f32]> {
        if let Tile::F(v) = t { Some(v) } else { None }
    }
    fn tile_mut(t: &mut Tile) -> Option<&mut [f32]> {
        if let Tile::F(v) = t { Some(v) } else { None }
    }
    fn from_bits(dtype: DType, bits: u64) -> f32 {
        convert::float_from_bits(dtype, bits)
    }
    fn to_bits(dtype: DType, x: f32) -> u64 {
        convert::float_to_bits(dtype, x)
    }
    #[inline(always)]
    fn from_nibbles(_dtype: DType, bytes: &[u8], odd: usize, out: &mut [f32]) {
        convert::floats_from_nibbles(bytes, odd, out);
    }
    #[inline(always)]
    fn round(dtype: DType, x: &mut [f32]) {
        convert::round_slice(dtype, x);
    }
    #[inline(always)]
    fn from_bytes(dtype: DType, bytes: &[u8], out: &mut [f32]) {
        convert::floats_from_bytes(dtype, bytes, out);
    }
    #[inline(always)]
    fn to_bytes(dtype: DType, x: &[f32], bytes: &mut [u8]) {
        convert::floats_to_bytes(dtype, x, bytes);
    }
    #[inline(always)]
    fn from_words(dtype: DType, memory: &HostMemory, first: usize, out: &mut [f32]) -> bool {
        match dtype {
            DType::F32 => {
                let (pairs, _) = out.as_chunks_mut::<2>();
                memory.each_word(first, pairs.len(), |i, w| {
                    pairs[i] = [f32::from_bits(w as u32), f32::from_bits((w >> 32) as u32)];
                });
                true
            }
            DType::Bf16 if simd::bf16_from_words(memory, first, out) => true,
            DType::Bf16 => {
                let (quads, _) = out.as_chunks_mut::<4>();
                memory.each_word(first, quads.len(), |i, w| {
                    quads[i] = std::array::from_fn(|k| f32::from_bits(((w >> (16 * k)) as u32) << 16));
                });
                true
            }
            DType::F16
            | DType::E4m3
            | DType::E5m2
            | DType::E2m1
            | DType::E8m0
            | DType::I8
            | DType::U8
            | DType::I32
            | DType::U32
            | DType::I64
            | DType::Bool => false,
        }
    }
    #[inline(always)]
    fn to_words(dtype: DType, memory: &HostMemory, first: usize, x: &[f32]) -> bool {
        match dtype {
            DType::F32 => {
                let (pairs, _) = x.as_chunks::<2>();
                memory.set_words(first, pairs.len(), |i| {
                    pairs[i][0].to_bits() as u64 | (pairs[i][1].to_bits() as u64) << 32
                });
                true
            }
            DType::Bf16 if simd::bf16_to_words(memory, first, x) => true,
            DType::Bf16 => {
                let (quads, _) = x.as_chunks::<4>();
                memory.set_words(first, quads.len(), |i| {
                    let [a, b, c, d] = quads[i].map(|v| (v.to_bits() >> 16) as u64);
                    a | b << 16 | c << 32 | d << 48
                });
                true
            }
            DType::F16
            | DType::E4m3
            | DType::E5m2
            | DType::E2m1
            | DType::E8m0
            | DType::I8
            | DType::U8
            | DType::I32
            | DType::U32
            | DType::I64
            | DType::Bool => false,
        }
    }
}

impl Lane for i32 {
    fn regs(r: &Regs) -> &[Vec<i32>] {
        &r.i
    }
    fn regs_mut(r: &mut Regs) -> &mut [Vec<i32>] {
        &mut r.i
    }
    fn tile(t: &Tile) -> Option<&[i32]> {
        if let Tile::I(v) = t { Some(v) } else { None }
    }
    fn tile_mut(t: &mut Tile) -> Option<&mut [i32]> {
        if let Tile::I(v) = t { Some(v) } else { None }
    }
    fn from_bits(dtype: DType, bits: u64) -> i32 {
        convert::wrap(dtype, bits as u32 as i32)
    }
    fn to_bits(dtype: DType, x: i32) -> u64 {
        if dtype.bits() == 8 { x as u8 as u64 } else { x as u32 as u64 }
    }
    fn from_nibbles(_dtype: DType, _bytes: &[u8], _odd: usize, _out: &mut [i32]) {}
    #[inline(always)]
    fn from_bytes(dtype: DType, bytes: &[u8], out: &mut [i32]) {
        match dtype.bits() {
            8 => out.iter_mut().zip(bytes).for_each(|(o, b)| *o = convert::wrap(dtype, *b as i32)),
            _ => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *o = i32::from_le_bytes(*b);
                }
            }
        }
    }
    #[inline(always)]
    fn to_bytes(dtype: DType, x: &[i32], bytes: &mut [u8]) {
        match dtype.bits() {
            8 => x.iter().zip(bytes).for_each(|(v, b)| *b = *v as u8),
            _ => {
                for (v, b) in x.iter().zip(bytes.as_chunks_mut::<4>().0) {
                    *b = v.to_le_bytes();
                }
            }
        }
    }
}

impl Lane for i64 {
    fn regs(r: &Regs) -> &[Vec<i64>] {
        &r.l
    }
    fn regs_mut(r: &mut Regs) -> &mut [Vec<i64>] {
        &mut r.l
    }
    fn tile(t: &Tile) -> Option<&[i64]> {
        if let Tile::L(v) = t { Some(v) } else { None }
    }
    fn tile_mut(t: &mut Tile) -> Option<&mut [i64]> {
        if let Tile::L(v) = t { Some(v) } else { None }
    }
    fn from_bits(_dtype: DType, bits: u64) -> i64 {
        bits as i64
    }
    fn to_bits(_dtype: DType, x: i64) -> u64 {
        x as u64
    }
    fn from_nibbles(_dtype: DType, _bytes: &[u8], _odd: usize, _out: &mut [i64]) {}
    #[inline(always)]
    fn from_bytes(_dtype: DType, bytes: &[u8], out: &mut [i64]) {
        for (o, b) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *o = i64::from_le_bytes(*b);
        }
    }
    #[inline(always)]
    fn to_bytes(_dtype: DType, x: &[i64], bytes: &mut [u8]) {
        for (v, b) in x.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *b = v.to_le_bytes();
        }
    }
}

/// Registers of a frame, one vector of lanes each.
#[derive(Clone, Debug, Default)]
pub struct Regs {
    /// Floats.
    pub f: Vec<Vec<f32>>,
    /// Integers.
    pub i: Vec<Vec<i32>>,
    /// 64-bit integers.
    pub l: Vec<Vec<i64>>,
}

impl Regs {
    /// Registers of `width` lanes: `counts` of each class.
    pub fn new(counts: [usize; 3], width: usize) -> Regs {
        Regs {
            f: vec![vec![0.0; width]; counts[0]],
            i: vec![vec![0; width]; counts[1]],
            l: vec![vec![0; width]; counts[2]],
        }
    }
}

/// One side of an access: a tensor or a tile, seen as elements of `dtype`.
#[derive(Debug)]
pub enum Side<'a> {
    /// Global memory.
    Global(Global<'a>),
    /// A tile; the number of its elements is checked by the slice.
    Tile(&'a Tile),
}

/// Number of elements of `dtype` a tile has.
fn tile_len(t: &Tile, dtype: DType) -> usize {
    match t {
        Tile::None => 0,
        Tile::F(v) => v.len(),
        Tile::I(v) => v.len(),
        Tile::L(v) => v.len(),
        Tile::Bytes(v) => v.len() * 8 / dtype.bits(),
    }
}

/// True if elements `first..=last` exist in a tile.
pub fn tile_holds(t: &Tile, dtype: DType, first: i64, last: i64) -> bool {
    first >= 0 && (last as i128) < tile_len(t, dtype) as i128
}

/// Reads `out.len()` elements from `at` on, `stride` apart. The range has been checked.
#[inline(always)]
pub fn read<T: Lane>(side: &Side, dtype: DType, at: i64, stride: i64, out: &mut [T], bytes: &mut Vec<u8>) {
    let n = out.len();
    match side {
        Side::Global(g) => {
            if stride == 1 && dtype.bits() >= 8 {
                let size = dtype.bits() / 8;
                let start = g.offset + at as usize * size;
                if start.is_multiple_of(8)
                    && (n * size).is_multiple_of(8)
                    && T::from_words(dtype, g.memory, start / 8, out)
                {
                    return;
                }
                bytes.resize(n * size, 0);
                g.memory.read(g.offset + at as usize * size, bytes);
                T::from_bytes(dtype, bytes, out);
            } else if stride == 1 {
                let (first, odd) = (at as usize / 2, at as usize % 2);
                bytes.resize((odd + n).div_ceil(2), 0);
                g.memory.read(g.offset + first, bytes);
                T::from_nibbles(dtype, bytes, odd, out);
            } else if stride == 0 {
                out.fill(T::from_bits(dtype, g.get(dtype, at as usize)));
            } else {
                for (k, o) in out.iter_mut().enumerate() {
                    *o = T::from_bits(dtype, g.get(dtype, (at + k as i64 * stride) as usize));
                }
            }
        }
        Side::Tile(Tile::Bytes(v)) => {
            if stride == 1 && dtype.bits() >= 8 {
                T::from_bytes(dtype, &v[at as usize * dtype.bits() / 8..], out);
            } else if stride == 1 {
                T::from_nibbles(dtype, &v[at as usize / 2..], at as usize % 2, out);
            } else {
                for (k, o) in out.iter_mut().enumerate() {
                    *o = T::from_bits(dtype, formats::load_bits(v, dtype, (at + k as i64 * stride) as usize));
                }
            }
        }
        Side::Tile(t) => {
            let v = T::tile(t).unwrap_or(&[]);
            if stride == 1 {
                out.copy_from_slice(&v[at as usize..at as usize + n]);
            } else if stride == 0 {
                out.fill(v[at as usize]);
            } else {
                for (k, o) in out.iter_mut().enumerate() {
                    *o = v[(at + k as i64 * stride) as usize];
                }
            }
        }
    }
}

/// Writes elements to global memory. The range has been checked.
#[inline(always)]
pub fn write_global<T: Lane>(g: &Global, dtype: DType, at: i64, stride: i64, x: &[T], bytes: &mut Vec<u8>) {
    if stride == 1 && dtype.bits() >= 8 {
        let size = dtype.bits() / 8;
        let start = g.offset + at as usize * size;
        if start.is_multiple_of(8) && (x.len() * size).is_multiple_of(8) && T::to_words(dtype, g.memory, start / 8, x) {
            return;
        }
        bytes.resize(x.len() * size, 0);
        T::to_bytes(dtype, x, bytes);
        g.memory.write(g.offset + at as usize * size, bytes);
    } else if stride == 1 && dtype.bits() == 4 {
        // Whole bytes at once; a nibble at either end leaves its neighbour as it is.
        let (mut at, mut x) = (at as usize, x);
        if let (1, Some((first, rest))) = (at % 2, x.split_first()) {
            g.put(dtype, at, T::to_bits(dtype, *first));
            (at, x) = (at + 1, rest);
        }
        let (pairs, last) = x.as_chunks::<2>();
        bytes.clear();
        bytes.extend(pairs.iter().map(|[a, b]| (T::to_bits(dtype, *a) | T::to_bits(dtype, *b) << 4) as u8));
        g.memory.write(g.offset + at / 2, bytes);
        if let [v] = last {
            g.put(dtype, at + 2 * pairs.len(), T::to_bits(dtype, *v));
        }
    } else {
        for (k, v) in x.iter().enumerate() {
            g.put(dtype, (at + k as i64 * stride) as usize, T::to_bits(dtype, *v));
        }
    }
}

/// Writes elements to a tile. The range has been checked.
#[inline(always)]
pub fn write_tile<T: Lane>(t: &mut Tile, dtype: DType, at: i64, stride: i64, x: &[T]) {
    match t {
        Tile::Bytes(v) => {
            if stride == 1 && dtype.bits() >= 8 {
                let size = dtype.bits() / 8;
                T::to_bytes(dtype, x, &mut v[at as usize * size..][..x.len() * size]);
            } else {
                for (k, e) in x.iter().enumerate() {
                    formats::store_bits(v, dtype, (at + k as i64 * stride) as usize, T::to_bits(dtype, *e));
                }
            }
        }
        Tile::None | Tile::F(_) | Tile::I(_) | Tile::L(_) => {
            let Some(v) = T::tile_mut(t) else { return };
            if stride == 1 {
                v[at as usize..at as usize + x.len()].copy_from_slice(x);
            } else {
                for (k, e) in x.iter().enumerate() {
                    v[(at + k as i64 * stride) as usize] = *e;
                }
            }
        }
    }
}
