//! Vectors of f32s and of i32s as an instruction set has them, and how one body is compiled for each size. A body is written once, against
//! [`Vector`]; it is compiled by one of the functions below, which have the instructions. Who calls them has seen that the CPU has them
//! too (`Level`).
#![allow(unsafe_code)] // instructions that the CPU has, and unchecked loads and stores: see `Vector`

use std::arch::x86_64::*;

/// A vector of f32s.
///
/// # Safety
/// Of every function: the code that it is inlined into is compiled with the instructions, the CPU has them, and pointers are to whole
/// vectors.
pub(super) trait Vector: Copy {
    /// A vector of as many i32s.
    type Ints: Copy;
    /// How many f32s it has.
    const LANES: usize;
    /// How many vectors a row of a packed panel has.
    const PANEL: usize;

    unsafe fn load(at: *const f32) -> Self;
    unsafe fn store(at: *mut f32, v: Self);
    /// A store that bypasses the caches; `at` is aligned to a vector.
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
    /// x in every lane.
    unsafe fn all_ints(x: i32) -> Self::Ints;
    unsafe fn mul(a: Self, b: Self) -> Self;
    unsafe fn add(a: Self, b: Self) -> Self;
    /// a b + c
    unsafe fn fmadd(a: Self, b: Self, c: Self) -> Self;
    /// a b - c
    unsafe fn fmsub(a: Self, b: Self, c: Self) -> Self;
    /// c - a b
    unsafe fn fnmadd(a: Self, b: Self, c: Self) -> Self;
    /// c + a b for pairs of bf16 in the bits of a and b, the high halves first.
    unsafe fn fmadd_pairs(a: Self, b: Self, c: Self) -> Self;
    unsafe fn from_ints(x: Self::Ints) -> Self;
    /// The f32s whose bits these are.
    unsafe fn from_bits(x: Self::Ints) -> Self;
    unsafe fn and(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn xor(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Shifted to lower bits, zeros following.
    unsafe fn down(a: Self::Ints, by: usize) -> Self::Ints;
    /// Shifted to higher bits.
    unsafe fn up(a: Self::Ints, by: usize) -> Self::Ints;
    /// The highest byte of each lane, with its sign.
    unsafe fn highest_byte(a: Self::Ints) -> Self::Ints;
    /// acc + the sum of four products of bytes: of w, which have no sign, and of x, which have one.
    unsafe fn dot(acc: Self::Ints, w: Self::Ints, x: Self::Ints) -> Self::Ints;
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

/// Functions that are compiled with some instructions, and run a body on vectors of a type.
macro_rules! compiled {
    ($($name:ident: $vector:ty, $features:literal;)*) => {
        $(
            /// # Safety
            /// The CPU has the instructions; and what the body needs.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(body: impl Body) {
                // SAFETY: as the caller says.
                unsafe { body.run::<$vector>() }
            }
        )*
    };
}

compiled! {
    avx2: __m256, "avx2,fma,f16c";
    avx512: __m512, "avx512f";
    avx512_bf16: __m512, "avx512f,avx512bf16";
    avx512_vnni: __m512, "avx512f,avx512vnni";
}

/// The functions of [`Vector`], each one expression.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $t:ty),*) $(-> $r:ty)? $body:block)*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($arg: $t),*) $(-> $r)? {
                // SAFETY: as `Vector` says.
                unsafe { $body }
            }
        )*
    };
}

impl Vector for __m512 {
    type Ints = __m512i;
    const LANES: usize = 16;
    const PANEL: usize = 4;

    functions! {
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
        fn and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn xor(a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        fn down(a: __m512i, by: usize) -> __m512i { _mm512_srlv_epi32(a, Self::all_ints(by as i32)) }
        fn up(a: __m512i, by: usize) -> __m512i { _mm512_sllv_epi32(a, Self::all_ints(by as i32)) }
        fn highest_byte(a: __m512i) -> __m512i { _mm512_srai_epi32::<24>(a) }
        fn dot(acc: __m512i, w: __m512i, x: __m512i) -> __m512i { _mm512_dpbusd_epi32(acc, w, x) }
        fn look_up(codes: __m512i, table: &[f32; 16]) -> Self { _mm512_permutexvar_ps(codes, Self::load(table.as_ptr())) }
    }
}

impl Vector for __m256 {
    type Ints = __m256i;
    const LANES: usize = 8;
    const PANEL: usize = 2;

    functions! {
        fn load(at: *const f32) -> Self { _mm256_loadu_ps(at) }
        fn store(at: *mut f32, v: Self) { _mm256_storeu_ps(at, v) }
        fn stream(at: *mut f32, v: Self) { _mm256_stream_ps(at, v) }
        fn load_ints(at: *const u8) -> __m256i { _mm256_loadu_si256(at.cast()) }
        fn load_halves(at: *const u8) -> Self { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
        fn load_signed(at: *const u8) -> Self { Self::from_ints(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
        fn load_unsigned(at: *const u8) -> Self { Self::from_ints(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()))) }
        fn all(x: f32) -> Self { _mm256_set1_ps(x) }
        fn all_ints(x: i32) -> __m256i { _mm256_set1_epi32(x) }
        fn mul(a: Self, b: Self) -> Self { _mm256_mul_ps(a, b) }
        fn add(a: Self, b: Self) -> Self { _mm256_add_ps(a, b) }
        fn fmadd(a: Self, b: Self, c: Self) -> Self { _mm256_fmadd_ps(a, b, c) }
        fn fmsub(a: Self, b: Self, c: Self) -> Self { _mm256_fmsub_ps(a, b, c) }
        fn fnmadd(a: Self, b: Self, c: Self) -> Self { _mm256_fnmadd_ps(a, b, c) }
        // no CPU without AVX-512 has the instruction: the two halves one after the other
        fn fmadd_pairs(a: Self, b: Self, c: Self) -> Self {
            let high = Self::from_bits(Self::all_ints(0xffff_0000_u32 as i32));
            let (a_low, b_low) = (Self::up(_mm256_castps_si256(a), 16), Self::up(_mm256_castps_si256(b), 16));
            let first = Self::fmadd(_mm256_and_ps(a, high), _mm256_and_ps(b, high), c);
            Self::fmadd(Self::from_bits(a_low), Self::from_bits(b_low), first)
        }
        fn from_ints(x: __m256i) -> Self { _mm256_cvtepi32_ps(x) }
        fn from_bits(x: __m256i) -> Self { _mm256_castsi256_ps(x) }
        fn and(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        fn xor(a: __m256i, b: __m256i) -> __m256i { _mm256_xor_si256(a, b) }
        fn down(a: __m256i, by: usize) -> __m256i { _mm256_srlv_epi32(a, Self::all_ints(by as i32)) }
        fn up(a: __m256i, by: usize) -> __m256i { _mm256_sllv_epi32(a, Self::all_ints(by as i32)) }
        fn highest_byte(a: __m256i) -> __m256i { _mm256_srai_epi32::<24>(a) }
        // in pairs of 16 bits: the instruction for bytes bounds its sums
        fn dot(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
            let (w_even, x_even) =
                (Self::and(w, _mm256_set1_epi16(255)), _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)));
            let (w_odd, x_odd) = (_mm256_srli_epi16::<8>(w), _mm256_srai_epi16::<8>(x));
            let both = _mm256_add_epi32(_mm256_madd_epi16(w_even, x_even), _mm256_madd_epi16(w_odd, x_odd));
            _mm256_add_epi32(acc, both)
        }
        // a table of sixteen needs two permutations: adding is as fast
        fn look_up(codes: __m256i, table: &[f32; 16]) -> Self {
            Self::add(Self::from_ints(Self::and(codes, Self::all_ints(15))), Self::all(table[0]))
        }
    }
}
