//! Vectors of f32s and of i32s as an instruction set has them, and how one body is compiled for each. A body is written
//! once, against [`Vector`]; it is compiled by one of the functions below, which have the instructions. Who calls them
//! has seen that the CPU has them too (`Level`).
#![allow(unsafe_code)] // instructions that the CPU has, and unchecked loads and stores: see `Vector`

use crate::numeric::half::widen_f16;
use crate::numeric::simd::{Kernel, Level, MulAdd, fma};
#[cfg(target_arch = "wasm32")]
use std::arch::wasm32::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
#[cfg(target_arch = "aarch64")]
use std::arch::{aarch64::*, asm};
use std::marker::PhantomData;

/// A vector of f32s.
///
/// # Safety
/// Of every function: the code that it is inlined into is compiled with the instructions, the CPU has them, and
/// pointers are to whole vectors.
pub(super) trait Vector: Copy {
    /// A vector of as many i32s.
    type Ints: Copy;
    /// Four signed bytes for every lane.
    type Four: Copy;
    /// Unfinished sums of products of bytes, one for each lane.
    type Sums: Copy;
    /// How many f32s it has.
    const LANES: usize;
    /// How many vectors a row of a packed panel has.
    const PANEL: usize;

    /// Brings what is read soon into the nearest cache, where there is an instruction for it.
    unsafe fn prefetch(at: *const u8);
    unsafe fn load(at: *const f32) -> Self;
    unsafe fn store(at: *mut f32, v: Self);
    /// A store that bypasses the caches, where there is an instruction for it; `at` is aligned to a vector.
    unsafe fn stream(at: *mut f32, v: Self);
    unsafe fn load_ints(at: *const u8) -> Self::Ints;
    /// Of f16s.
    unsafe fn load_halves(at: *const u8) -> Self;
    /// Of i8s.
    unsafe fn load_signed(at: *const u8) -> Self;
    /// Of u8s.
    unsafe fn load_unsigned(at: *const u8) -> Self;
    /// x in every lane.
    unsafe fn all(x: f32) -> Self;
    /// What is at `at`, in every lane.
    #[inline(always)]
    unsafe fn load_all(at: *const f32) -> Self {
        // SAFETY: as `Vector` says.
        unsafe { Self::all(*at) }
    }
    /// x in every lane.
    unsafe fn all_ints(x: i32) -> Self::Ints;
    unsafe fn mul(a: Self, b: Self) -> Self;
    unsafe fn add(a: Self, b: Self) -> Self;
    /// a b + c
    unsafe fn fmadd(a: Self, b: Self, c: Self) -> Self;
    /// a b - c, where a b is exact, so that only the difference is rounded
    unsafe fn fmsub(a: Self, b: Self, c: Self) -> Self;
    /// c - a b
    unsafe fn fnmadd(a: Self, b: Self, c: Self) -> Self;
    /// c + a b for pairs of bf16 in the bits of a and b, the high halves first.
    unsafe fn fmadd_pairs(a: Self, b: Self, c: Self) -> Self;
    unsafe fn from_ints(x: Self::Ints) -> Self;
    /// The f32s whose bits these are.
    unsafe fn from_bits(x: Self::Ints) -> Self;
    unsafe fn bits(x: Self) -> Self::Ints;
    unsafe fn and(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn xor(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Shifted to lower bits, zeros following.
    unsafe fn down(a: Self::Ints, by: usize) -> Self::Ints;
    /// Shifted to higher bits.
    unsafe fn up(a: Self::Ints, by: usize) -> Self::Ints;
    /// The highest byte of each lane, with its sign.
    unsafe fn highest_byte(a: Self::Ints) -> Self::Ints;
    unsafe fn load_four(at: *const i32) -> Self::Four;
    /// Sums of products of codes w, as they are stored, and of signed bytes x: [`first`](Vector::first), then `dot` for
    /// at most 32 steps, four at a time, then [`last`](Vector::last). `start` is what the offset of stored codes takes
    /// away.
    unsafe fn first<const BITS: usize>(start: i32) -> Self::Sums;
    unsafe fn dot<const BITS: usize>(acc: Self::Sums, w: Self::Ints, x: Self::Four) -> Self::Sums;
    unsafe fn last<const BITS: usize>(acc: Self::Sums, start: i32) -> Self::Ints;
    /// What codes of four bits mean, in the low bits of the lanes: `table` is of consecutive integers.
    unsafe fn look_up(codes: Self::Ints, table: &[f32; 16]) -> Self;
}

/// A body for vectors of every size.
pub(super) trait Body {
    /// It must be `#[inline(always)]`, and so must what it calls.
    ///
    /// # Safety
    /// As [`Vector`], and what the body itself needs.
    unsafe fn run<V: Vector>(self);
}

/// Runs a body on [`Plain`] vectors.
///
/// # Safety
/// What the body needs.
pub(super) unsafe fn plain(level: Level, body: impl Body) {
    struct OnPlain<B>(B);
    impl<B: Body> Kernel for OnPlain<B> {
        #[inline(always)]
        fn run<M: MulAdd>(self) {
            // SAFETY: as the caller says; plain vectors need no instructions.
            unsafe { self.0.run::<Plain<M>>() }
        }
    }
    level.run(OnPlain(body));
}

/// Functions that are compiled with some instructions, and run a body on vectors of a type.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! compiled {
    ($($name:ident: $vector:ty, $features:literal;)*) => {
        $(
            /// # Safety
            /// The CPU has the instructions; and what the body needs.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(_: Level, body: impl Body) {
                // SAFETY: as the caller says.
                unsafe { body.run::<$vector>() }
            }
        )*
    };
}

#[cfg(target_arch = "x86_64")]
compiled! {
    avx2: Half<false>, "avx2,fma,f16c";
    avx2_vnni: Half<true>, "avx2,fma,f16c,avxvnni";
    avx512: __m512, "avx512f";
    avx512_bf16: __m512, "avx512f,avx512bf16";
    avx512_vnni: __m512, "avx512f,avx512vnni";
}

#[cfg(target_arch = "aarch64")]
compiled! {
    neon: Quarter<false>, "neon";
    neon_dot: Quarter<true>, "neon,dotprod";
}

/// # Safety
/// What the body needs: a module of WebAssembly has its instructions, or it does not begin.
#[cfg(target_arch = "wasm32")]
pub(super) unsafe fn wasm(_: Level, body: impl Body) {
    // SAFETY: as the caller says.
    unsafe { body.run::<Wasm>() }
}

#[cfg(not(any(target_arch = "aarch64", target_arch = "wasm32")))]
pub(super) use self::{plain as neon, plain as neon_dot};
#[cfg(not(target_arch = "x86_64"))]
pub(super) use self::{plain as avx2, plain as avx2_vnni, plain as avx512, plain as avx512_bf16, plain as avx512_vnni};
#[cfg(target_arch = "wasm32")]
pub(super) use self::{wasm as neon, wasm as neon_dot};

/// The functions of [`Vector`], each one expression.
macro_rules! functions {
    ($(fn $name:ident$(<const $bits:ident: usize>)?($($arg:ident: $t:ty),*) $(-> $r:ty)? $body:block)*) => {
        $(
            #[inline(always)]
            unsafe fn $name$(<const $bits: usize>)?($($arg: $t),*) $(-> $r)? {
                // SAFETY: as `Vector` says.
                #[allow(unused_unsafe)]
                unsafe { $body }
            }
        )*
    };
}

/// [`Vector::fmadd_pairs`] without an instruction for it: the two halves one after the other.
#[inline(always)]
unsafe fn halves_of_pairs<V: Vector>(a: V, b: V, c: V) -> V {
    // SAFETY: as `Vector` says.
    unsafe {
        let high = |v: V| V::from_bits(V::and(V::bits(v), V::all_ints(0xffff_0000_u32 as i32)));
        let low = |v: V| V::from_bits(V::up(V::bits(v), 16));
        V::fmadd(low(a), low(b), V::fmadd(high(a), high(b), c))
    }
}

/// Sixteen f32s in plain Rust, of which the compiler makes the vectors that it knows.
pub(super) struct Plain<M>([f32; 16], PhantomData<M>);

/// Sixteen values, lane by lane, written out: a closure may be left a function of its own (STYLE 12), and a loop was a
/// tenth slower.
macro_rules! lanes {
    (|$lane:ident| $value:expr) => {
        lanes!(@ $lane, $value; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $lane:ident, $value:expr; $($i:literal)*) => {
        [$({
            let $lane = $i;
            $value
        }),*]
    };
}

impl<M> Plain<M> {
    #[inline(always)]
    fn of(lanes: [f32; 16]) -> Self {
        Plain(lanes, PhantomData)
    }
}

impl<M> Clone for Plain<M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Plain<M> {}

impl<M: MulAdd> Vector for Plain<M> {
    type Ints = [i32; 16];
    type Four = [i32; 16];
    type Sums = [i32; 16];
    const LANES: usize = 16;
    const PANEL: usize = 1;

    functions! {
        fn prefetch(_at: *const u8) {}
        fn load(at: *const f32) -> Self { Self::of(at.cast::<[f32; 16]>().read_unaligned()) }
        fn store(at: *mut f32, v: Self) { at.cast::<[f32; 16]>().write_unaligned(v.0) }
        fn stream(at: *mut f32, v: Self) { Self::store(at, v) }
        fn load_ints(at: *const u8) -> [i32; 16] { at.cast::<[i32; 16]>().read_unaligned() }
        fn load_halves(at: *const u8) -> Self {
            let halves = at.cast::<[u16; 16]>().read_unaligned();
            Self::of(lanes!(|i| widen_f16(halves[i])))
        }
        fn load_signed(at: *const u8) -> Self { Self::of(lanes!(|i| f32::from(*at.add(i) as i8))) }
        fn load_unsigned(at: *const u8) -> Self { Self::of(lanes!(|i| f32::from(*at.add(i)))) }
        fn all(x: f32) -> Self { Self::of([x; 16]) }
        fn all_ints(x: i32) -> [i32; 16] { [x; 16] }
        fn mul(a: Self, b: Self) -> Self { Self::of(lanes!(|i| a.0[i] * b.0[i])) }
        fn add(a: Self, b: Self) -> Self { Self::of(lanes!(|i| a.0[i] + b.0[i])) }
        fn fmadd(a: Self, b: Self, c: Self) -> Self { Self::of(lanes!(|i| fma::<M>(a.0[i], b.0[i], c.0[i]))) }
        fn fmsub(a: Self, b: Self, c: Self) -> Self { Self::of(lanes!(|i| a.0[i] * b.0[i] - c.0[i])) }
        fn fnmadd(a: Self, b: Self, c: Self) -> Self { Self::of(lanes!(|i| fma::<M>(-a.0[i], b.0[i], c.0[i]))) }
        fn fmadd_pairs(a: Self, b: Self, c: Self) -> Self { halves_of_pairs(a, b, c) }
        fn from_ints(x: [i32; 16]) -> Self { Self::of(lanes!(|i| x[i] as f32)) }
        fn from_bits(x: [i32; 16]) -> Self { Self::of(lanes!(|i| f32::from_bits(x[i] as u32))) }
        fn bits(x: Self) -> [i32; 16] { lanes!(|i| x.0[i].to_bits() as i32) }
        fn and(a: [i32; 16], b: [i32; 16]) -> [i32; 16] { lanes!(|i| a[i] & b[i]) }
        fn xor(a: [i32; 16], b: [i32; 16]) -> [i32; 16] { lanes!(|i| a[i] ^ b[i]) }
        fn down(a: [i32; 16], by: usize) -> [i32; 16] { lanes!(|i| (a[i] as u32 >> by) as i32) }
        fn up(a: [i32; 16], by: usize) -> [i32; 16] { lanes!(|i| a[i] << by) }
        fn highest_byte(a: [i32; 16]) -> [i32; 16] { lanes!(|i| a[i] >> 24) }
        fn load_four(at: *const i32) -> [i32; 16] { Self::all_ints(*at) }
        fn first<const BITS: usize>(start: i32) -> [i32; 16] { [start; 16] }
        fn dot<const BITS: usize>(acc: [i32; 16], w: [i32; 16], x: [i32; 16]) -> [i32; 16] {
            let mut acc = acc;
            for i in 0..16 {
                let (w, x) = (w[i].to_le_bytes(), x[i].to_le_bytes());
                for s in 0..4 {
                    acc[i] += i32::from(w[s]) * i32::from(x[s] as i8);
                }
            }
            acc
        }
        fn last<const BITS: usize>(acc: [i32; 16], _start: i32) -> [i32; 16] { acc }
        fn look_up(codes: [i32; 16], table: &[f32; 16]) -> Self { Self::of(lanes!(|i| table[codes[i] as usize & 15])) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Vector for __m512 {
    type Ints = __m512i;
    type Four = __m512i;
    type Sums = __m512i;
    const LANES: usize = 16;
    const PANEL: usize = 4;

    functions! {
        fn prefetch(at: *const u8) { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        fn load(at: *const f32) -> Self { _mm512_loadu_ps(at) }
        fn store(at: *mut f32, v: Self) { _mm512_storeu_ps(at, v) }
        fn stream(at: *mut f32, v: Self) { _mm512_stream_ps(at, v) }
        fn load_ints(at: *const u8) -> __m512i { _mm512_loadu_si512(at.cast()) }
        fn load_halves(at: *const u8) -> Self { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
        fn load_signed(at: *const u8) -> Self { Self::from_ints(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
        fn load_unsigned(at: *const u8) -> Self { Self::from_ints(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()))) }
        fn all(x: f32) -> Self { _mm512_set1_ps(x) }
        fn all_ints(x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn mul(a: Self, b: Self) -> Self { _mm512_mul_ps(a, b) }
        fn add(a: Self, b: Self) -> Self { _mm512_add_ps(a, b) }
        fn fmadd(a: Self, b: Self, c: Self) -> Self { _mm512_fmadd_ps(a, b, c) }
        fn fmsub(a: Self, b: Self, c: Self) -> Self { _mm512_fmsub_ps(a, b, c) }
        fn fnmadd(a: Self, b: Self, c: Self) -> Self { _mm512_fnmadd_ps(a, b, c) }
        fn fmadd_pairs(a: Self, b: Self, c: Self) -> Self {
            // a vector of 16 f32s has the bits of one of 32 bf16s
            let a = std::mem::transmute::<__m512, __m512bh>(a);
            let b = std::mem::transmute::<__m512, __m512bh>(b);
            _mm512_dpbf16_ps(c, a, b)
        }
        fn from_ints(x: __m512i) -> Self { _mm512_cvtepi32_ps(x) }
        fn from_bits(x: __m512i) -> Self { _mm512_castsi512_ps(x) }
        fn bits(x: Self) -> __m512i { _mm512_castps_si512(x) }
        fn and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn xor(a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        fn down(a: __m512i, by: usize) -> __m512i { _mm512_srlv_epi32(a, Self::all_ints(by as i32)) }
        fn up(a: __m512i, by: usize) -> __m512i { _mm512_sllv_epi32(a, Self::all_ints(by as i32)) }
        fn highest_byte(a: __m512i) -> __m512i { _mm512_srai_epi32::<24>(a) }
        fn load_four(at: *const i32) -> __m512i { Self::all_ints(*at) }
        fn first<const BITS: usize>(start: i32) -> __m512i { Self::all_ints(start) }
        fn dot<const BITS: usize>(acc: __m512i, w: __m512i, x: __m512i) -> __m512i { _mm512_dpbusd_epi32(acc, w, x) }
        fn last<const BITS: usize>(acc: __m512i, _start: i32) -> __m512i { acc }
        fn look_up(codes: __m512i, table: &[f32; 16]) -> Self {
            _mm512_permutexvar_ps(codes, Self::load(table.as_ptr()))
        }
    }
}

/// Vectors of 256 bits, with the instruction that sums four products of bytes (AVX-VNNI) or without it.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Half<const VNNI: bool>(__m256);

#[cfg(target_arch = "x86_64")]
impl<const VNNI: bool> Vector for Half<VNNI> {
    type Ints = __m256i;
    type Four = __m256i;
    type Sums = __m256i;
    const LANES: usize = 8;
    const PANEL: usize = 2;

    functions! {
        fn prefetch(at: *const u8) { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        fn load(at: *const f32) -> Self { Half(_mm256_loadu_ps(at)) }
        fn store(at: *mut f32, v: Self) { _mm256_storeu_ps(at, v.0) }
        fn stream(at: *mut f32, v: Self) { _mm256_stream_ps(at, v.0) }
        fn load_ints(at: *const u8) -> __m256i { _mm256_loadu_si256(at.cast()) }
        fn load_halves(at: *const u8) -> Self { Half(_mm256_cvtph_ps(_mm_loadu_si128(at.cast()))) }
        fn load_signed(at: *const u8) -> Self { Self::from_ints(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
        fn load_unsigned(at: *const u8) -> Self { Self::from_ints(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()))) }
        fn all(x: f32) -> Self { Half(_mm256_set1_ps(x)) }
        fn all_ints(x: i32) -> __m256i { _mm256_set1_epi32(x) }
        fn mul(a: Self, b: Self) -> Self { Half(_mm256_mul_ps(a.0, b.0)) }
        fn add(a: Self, b: Self) -> Self { Half(_mm256_add_ps(a.0, b.0)) }
        fn fmadd(a: Self, b: Self, c: Self) -> Self { Half(_mm256_fmadd_ps(a.0, b.0, c.0)) }
        fn fmsub(a: Self, b: Self, c: Self) -> Self { Half(_mm256_fmsub_ps(a.0, b.0, c.0)) }
        fn fnmadd(a: Self, b: Self, c: Self) -> Self { Half(_mm256_fnmadd_ps(a.0, b.0, c.0)) }
        fn fmadd_pairs(a: Self, b: Self, c: Self) -> Self { halves_of_pairs(a, b, c) }
        fn from_ints(x: __m256i) -> Self { Half(_mm256_cvtepi32_ps(x)) }
        fn from_bits(x: __m256i) -> Self { Half(_mm256_castsi256_ps(x)) }
        fn bits(x: Self) -> __m256i { _mm256_castps_si256(x.0) }
        fn and(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        fn xor(a: __m256i, b: __m256i) -> __m256i { _mm256_xor_si256(a, b) }
        fn down(a: __m256i, by: usize) -> __m256i { _mm256_srlv_epi32(a, Self::all_ints(by as i32)) }
        fn up(a: __m256i, by: usize) -> __m256i { _mm256_sllv_epi32(a, Self::all_ints(by as i32)) }
        fn highest_byte(a: __m256i) -> __m256i { _mm256_srai_epi32::<24>(a) }
        fn load_four(at: *const i32) -> __m256i { Self::all_ints(*at) }
        // without AVX-VNNI: the instruction for bytes sums two products in 16 bits: with codes of four bits, sixteen
        // fit; of eight bits, two fit if their offset of 128 is taken away first
        fn first<const BITS: usize>(start: i32) -> __m256i { Self::all_ints(if VNNI { start } else { 0 }) }
        fn dot<const BITS: usize>(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
            if VNNI {
                _mm256_dpbusd_avx_epi32(acc, w, x)
            } else if BITS == 4 {
                _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x))
            } else {
                let w = Self::xor(w, _mm256_set1_epi8(i8::MIN));
                let two = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
                _mm256_add_epi32(acc, _mm256_madd_epi16(two, _mm256_set1_epi16(1)))
            }
        }
        fn last<const BITS: usize>(acc: __m256i, start: i32) -> __m256i {
            if BITS == 4 && !VNNI {
                _mm256_add_epi32(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)), Self::all_ints(start))
            } else {
                acc
            }
        }
        // a table of sixteen needs two permutations: adding is as fast
        fn look_up(codes: __m256i, table: &[f32; 16]) -> Self {
            Self::add(Self::from_ints(Self::and(codes, Self::all_ints(15))), Self::all(table[0]))
        }
    }
}

/// Vectors of 128 bits, with the instruction that sums four products of bytes (`dotprod`) or without it.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
pub(super) struct Quarter<const DOT: bool>(float32x4_t);

#[cfg(target_arch = "aarch64")]
impl<const DOT: bool> Vector for Quarter<DOT> {
    type Ints = int32x4_t;
    /// In one lane, which the instruction takes.
    type Four = f32;
    /// With codes of four bits and without `dotprod`, the two halves of sums in 16 bits; else the first alone.
    type Sums = [int32x4_t; 2];
    const LANES: usize = 4;
    const PANEL: usize = 4;

    functions! {
        // the instruction has no stable function, and nobody has measured what it saves
        fn prefetch(_at: *const u8) {}
        fn load(at: *const f32) -> Self { Quarter(vld1q_f32(at)) }
        fn store(at: *mut f32, v: Self) { vst1q_f32(at, v.0) }
        fn stream(at: *mut f32, v: Self) { Self::store(at, v) }
        fn load_ints(at: *const u8) -> int32x4_t { vreinterpretq_s32_u8(vld1q_u8(at)) }
        fn load_halves(at: *const u8) -> Self {
            let v;
            // its function needs Rust 1.94
            asm!("fcvtl {v:v}.4s, {halves:v}.4h", v = out(vreg) v, halves = in(vreg) vld1_u16(at.cast()),
                options(pure, nomem, nostack, preserves_flags));
            Quarter(v)
        }
        fn load_signed(at: *const u8) -> Self {
            let bytes = vcreate_s8(u64::from(at.cast::<u32>().read_unaligned()));
            Self::from_ints(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
        }
        fn load_unsigned(at: *const u8) -> Self {
            let bytes = vcreate_u8(u64::from(at.cast::<u32>().read_unaligned()));
            Self::from_ints(vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes)))))
        }
        fn all(x: f32) -> Self { Quarter(vdupq_n_f32(x)) }
        // a multiply-add takes one lane of a register as well as a vector. The compiler does not see that this is a
        // load, or it would load to all lanes, which keeps a unit for vectors busy
        fn load_all(at: *const f32) -> Self {
            let mut x = *at;
            asm!("/* {x:s} */", x = inout(vreg) x, options(pure, nomem, nostack, preserves_flags));
            Self::all(x)
        }
        fn all_ints(x: i32) -> int32x4_t { vdupq_n_s32(x) }
        fn mul(a: Self, b: Self) -> Self { Quarter(vmulq_f32(a.0, b.0)) }
        fn add(a: Self, b: Self) -> Self { Quarter(vaddq_f32(a.0, b.0)) }
        fn fmadd(a: Self, b: Self, c: Self) -> Self { Quarter(vfmaq_f32(c.0, a.0, b.0)) }
        fn fmsub(a: Self, b: Self, c: Self) -> Self { Quarter(vsubq_f32(vmulq_f32(a.0, b.0), c.0)) }
        fn fnmadd(a: Self, b: Self, c: Self) -> Self { Quarter(vfmsq_f32(c.0, a.0, b.0)) }
        // BFDOT rounds otherwise
        fn fmadd_pairs(a: Self, b: Self, c: Self) -> Self { halves_of_pairs(a, b, c) }
        fn from_ints(x: int32x4_t) -> Self { Quarter(vcvtq_f32_s32(x)) }
        fn from_bits(x: int32x4_t) -> Self { Quarter(vreinterpretq_f32_s32(x)) }
        fn bits(x: Self) -> int32x4_t { vreinterpretq_s32_f32(x.0) }
        fn and(a: int32x4_t, b: int32x4_t) -> int32x4_t { vandq_s32(a, b) }
        fn xor(a: int32x4_t, b: int32x4_t) -> int32x4_t { veorq_s32(a, b) }
        fn down(a: int32x4_t, by: usize) -> int32x4_t {
            vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-(by as i32))))
        }
        fn up(a: int32x4_t, by: usize) -> int32x4_t { vshlq_s32(a, vdupq_n_s32(by as i32)) }
        fn highest_byte(a: int32x4_t) -> int32x4_t { vshrq_n_s32::<24>(a) }
        fn load_four(at: *const i32) -> f32 { *at.cast() }
        // bytes are multiplied with their signs: of codes of eight bits, the offset of 128 is taken away first. Without
        // `dotprod`, a product has 16 bits: with codes of four bits, sixteen fit, and with codes of eight bits, two
        fn first<const BITS: usize>(start: i32) -> [int32x4_t; 2] {
            [vdupq_n_s32(if DOT && BITS == 4 { start } else { 0 }), vdupq_n_s32(0)]
        }
        fn dot<const BITS: usize>(acc: [int32x4_t; 2], w: int32x4_t, x: f32) -> [int32x4_t; 2] {
            let w = if BITS == 4 { w } else { Self::xor(w, vreinterpretq_s32_s8(vdupq_n_s8(i8::MIN))) };
            let [mut low, mut high] = acc;
            if DOT {
                // its function is not stable
                asm!("sdot {sum:v}.4s, {w:v}.16b, {x:v}.4b[0]", sum = inout(vreg) low, w = in(vreg) w,
                    x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
                return [low, high];
            }
            let (w, x) = (vreinterpretq_s8_s32(w), vreinterpretq_s8_f32(vdupq_n_f32(x)));
            if BITS == 4 {
                let [l, h] = [vreinterpretq_s16_s32(low), vreinterpretq_s16_s32(high)];
                low = vreinterpretq_s32_s16(vmlal_s8(l, vget_low_s8(w), vget_low_s8(x)));
                high = vreinterpretq_s32_s16(vmlal_high_s8(h, w, x));
            } else {
                let products = [vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x)];
                low = vpadalq_s16(low, vpaddq_s16(products[0], products[1]));
            }
            [low, high]
        }
        fn last<const BITS: usize>(acc: [int32x4_t; 2], start: i32) -> int32x4_t {
            let [low, high] = acc;
            if DOT || BITS == 8 {
                return low;
            }
            let pairs = vpaddq_s16(vreinterpretq_s16_s32(low), vreinterpretq_s16_s32(high));
            vpadalq_s16(vdupq_n_s32(start), pairs)
        }
        // a code in the last bits of 2^23 is that number plus the code
        fn look_up(codes: int32x4_t, table: &[f32; 16]) -> Self {
            const BASE: f32 = 8_388_608.0;
            let code = vbslq_s32(vdupq_n_u32(15), codes, vdupq_n_s32(BASE.to_bits() as i32));
            Self::add(Self::from_bits(code), Self::all(table[0] - BASE))
        }
    }
}

/// Vectors of 128 bits of WebAssembly.
#[cfg(target_arch = "wasm32")]
#[derive(Clone, Copy)]
pub(super) struct Wasm(v128);

#[cfg(target_arch = "wasm32")]
impl Wasm {
    /// a b + c, rounded once: an instruction where the module has it (and the engine fuses, which `simd::Level` has
    /// seen).
    #[inline(always)]
    fn fused(a: v128, b: v128, c: v128) -> v128 {
        #[cfg(target_feature = "relaxed-simd")]
        return f32x4_relaxed_madd(a, b, c);
        #[cfg(not(target_feature = "relaxed-simd"))]
        return crate::numeric::simd::computed_lanes(a, b, c);
    }
}

#[cfg(target_arch = "wasm32")]
impl Vector for Wasm {
    type Ints = v128;
    type Four = v128;
    type Sums = v128;
    const LANES: usize = 4;
    const PANEL: usize = 4;

    functions! {
        fn prefetch(_at: *const u8) {}
        fn load(at: *const f32) -> Self { Wasm(v128_load(at.cast())) }
        fn store(at: *mut f32, v: Self) { v128_store(at.cast(), v.0) }
        fn stream(at: *mut f32, v: Self) { Self::store(at, v) }
        fn load_ints(at: *const u8) -> v128 { v128_load(at.cast()) }
        fn load_halves(at: *const u8) -> Self {
            let [a, b, c, d] = at.cast::<[u16; 4]>().read_unaligned().map(widen_f16);
            Wasm(f32x4(a, b, c, d))
        }
        fn load_signed(at: *const u8) -> Self {
            Self::from_ints(i32x4_extend_low_i16x8(i16x8_extend_low_i8x16(v128_load32_zero(at.cast()))))
        }
        fn load_unsigned(at: *const u8) -> Self {
            Self::from_ints(u32x4_extend_low_u16x8(u16x8_extend_low_u8x16(v128_load32_zero(at.cast()))))
        }
        fn all(x: f32) -> Self { Wasm(f32x4_splat(x)) }
        fn load_all(at: *const f32) -> Self { Wasm(v128_load32_splat(at.cast())) }
        fn all_ints(x: i32) -> v128 { i32x4_splat(x) }
        fn mul(a: Self, b: Self) -> Self { Wasm(f32x4_mul(a.0, b.0)) }
        fn add(a: Self, b: Self) -> Self { Wasm(f32x4_add(a.0, b.0)) }
        fn fmadd(a: Self, b: Self, c: Self) -> Self { Wasm(Self::fused(a.0, b.0, c.0)) }
        fn fmsub(a: Self, b: Self, c: Self) -> Self { Wasm(f32x4_sub(f32x4_mul(a.0, b.0), c.0)) }
        fn fnmadd(a: Self, b: Self, c: Self) -> Self { Wasm(Self::fused(f32x4_neg(a.0), b.0, c.0)) }
        fn fmadd_pairs(a: Self, b: Self, c: Self) -> Self { halves_of_pairs(a, b, c) }
        fn from_ints(x: v128) -> Self { Wasm(f32x4_convert_i32x4(x)) }
        fn from_bits(x: v128) -> Self { Wasm(x) }
        fn bits(x: Self) -> v128 { x.0 }
        fn and(a: v128, b: v128) -> v128 { v128_and(a, b) }
        fn xor(a: v128, b: v128) -> v128 { v128_xor(a, b) }
        fn down(a: v128, by: usize) -> v128 { u32x4_shr(a, by as u32) }
        fn up(a: v128, by: usize) -> v128 { i32x4_shl(a, by as u32) }
        fn highest_byte(a: v128) -> v128 { i32x4_shr(a, 24) }
        fn load_four(at: *const i32) -> v128 { v128_load32_splat(at.cast()) }
        fn first<const BITS: usize>(start: i32) -> v128 { i32x4_splat(start) }
        // products of unsigned by signed bytes, the sums of four in 32 bits
        fn dot<const BITS: usize>(acc: v128, w: v128, x: v128) -> v128 {
            let low = i32x4_dot_i16x8(u16x8_extend_low_u8x16(w), i16x8_extend_low_i8x16(x));
            let high = i32x4_dot_i16x8(u16x8_extend_high_u8x16(w), i16x8_extend_high_i8x16(x));
            let even = i32x4_shuffle::<0, 2, 4, 6>(low, high);
            let odd = i32x4_shuffle::<1, 3, 5, 7>(low, high);
            i32x4_add(acc, i32x4_add(even, odd))
        }
        fn last<const BITS: usize>(acc: v128, _start: i32) -> v128 { acc }
        fn look_up(codes: v128, table: &[f32; 16]) -> Self {
            Self::add(Self::from_ints(Self::and(codes, Self::all_ints(15))), Self::all(table[0]))
        }
    }
}
