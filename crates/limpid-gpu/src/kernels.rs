//! The table of kernels: each is an entry point of a file in `kernels/`, compiled when a run first needs it and kept
//! with the device. What is in front of every file is `common.wgsl`.

use crate::adapter::GpuMatrices;

/// A kernel, as it is written.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct GpuKernel {
    /// Its entry point.
    pub entry: &'static str,
    /// The text that it is in.
    pub text: &'static str,
    /// How many bindings it has.
    pub bindings: usize,
}

/// How a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Variant {
    /// Features of a head, for attention.
    pub d: usize,
    /// Whether the cache has bf16, two in a word.
    pub halves: bool,
    /// Rows of a product that a thread makes, or of matrices that a subgroup makes; 0 where it is no product.
    pub rows: usize,
    /// Which operands of a product are stored across, and which are read four elements at once.
    pub across: [bool; 2],
    pub fours: [bool; 2],
    /// Whether operands of a product are rounded to bf16.
    pub rounds: bool,
    /// The matrices that multiply them, rounded to f16.
    pub matrices: Option<GpuMatrices>,
}

impl Variant {
    /// For heads of `d` features.
    pub const fn heads(d: usize, halves: bool) -> Variant {
        Variant { d, halves, rows: 0, across: [false; 2], fours: [false; 2], rounds: false, matrices: None }
    }
    /// The lines before a kernel's text.
    pub fn lines(self) -> String {
        let Variant { d, halves, rows, across, fours, rounds, matrices } = self;
        // tiles of at most 4 KiB of keys, and as many of values, with the products of 64 rows: WebGPU promises 16
        let tile = 1024 / d.max(64).next_power_of_two();
        let operands = || -> String {
            let across = ["A", "B"].into_iter().zip(across).map(|(name, is)| format!("const ACROSS_{name} = {is};\n"));
            let operands = ["a", "b"].into_iter().zip(fours).enumerate();
            let operands = operands.map(|(i, (name, fours))| operand(i, name, fours, matrices.is_some()));
            across.chain(operands).chain([PRODUCTS.into()]).collect()
        };
        if let Some(GpuMatrices { side, lanes }) = matrices {
            let matrix = |name, element, role| format!("alias {name} = coop_mat{side}x{side}<{element}, {role}>;\n");
            return [
                "enable f16;\nenable wgpu_cooperative_matrix;\n".into(),
                format!("const SIDE = {side}u;\nconst GROUP = {lanes}u;\nconst ROWS = {rows}u;\n"),
                [matrix("Left", "f16", "A"), matrix("Right", "f16", "B"), matrix("Sum", "f32", "C")].concat(),
                operands(),
            ]
            .concat();
        }
        match (d, rows) {
            (0, 0) => String::new(),
            (0, _) => format!("const ROWS = {rows}u;\nconst ROUNDS = {rounds};\n{}", operands()),
            _ => format!("const D = {d}u;\nconst TILE = {tile}u;\nconst HALVES = {halves};\n"),
        }
    }
}

/// An operand of a product, and how four elements of it are read, of which there may be fewer. What pads a row to a
/// multiple of four is zero. `ahead`: the read is unconditional, from somewhere, so that the driver does not wait for
/// it before it goes on; that is faster where the next tile is read early, and slower elsewhere.
fn operand(binding: usize, name: &str, fours: bool, ahead: bool) -> String {
    let (of, read) = match (fours, ahead) {
        (true, true) => ("vec4f", format!("v = select(v, {name}[select(0u, at / 4u, there > 0u)], there > 0u);")),
        (true, false) => ("vec4f", format!("if there > 0u {{ v = {name}[at / 4u]; }}")),
        _ => ("f32", format!("for (var i = 0u; i < 4u; i++) {{ if i < there {{ v[i] = {name}[at + i]; }} }}")),
    };
    format!(
        "@group(0) @binding({binding}) var<storage, read_write> {name}: array<{of}>;\nfn {name}_four(at: u32, there: \
         u32) -> vec4f {{ var v = vec4f(0.0); {read} return v; }}\n"
    )
}

/// The most features that a head may have.
pub const MOST_D: usize = 256;

/// What is in front of kernels of products.
const PRODUCTS: &str = include_str!("kernels/product.wgsl");

/// What is in front of every kernel.
pub const COMMON: &str = include_str!("kernels/common.wgsl");

macro_rules! kernels {
    ($($file:literal: $($name:ident = $entry:literal, $bindings:literal;)*)*) => {
        $($(#[doc = concat!("`", $entry, "` of `", $file, "`.")]
        pub static $name: GpuKernel = GpuKernel {
            entry: $entry, text: include_str!(concat!("kernels/", $file)), bindings: $bindings,
        };)*)*
        /// All of them.
        #[cfg(test)]
        pub static ALL: &[&GpuKernel] = &[$($(&$name),*),*];
    };
}

kernels! {
    "embed.wgsl": LOOK = "look", 5; SPREAD = "spread", 3;
    "norm.wgsl": NORM = "norm", 5; NORM_BACK = "norm_back", 7; NORM_WATCH = "norm_watch", 6;
        NORM_SCALE = "norm_scale", 5;
    "linear.wgsl": PRODUCT = "product", 4; THIN = "thin", 4;
    "linear_f16.wgsl": PRODUCT_F16 = "product_f16", 4;
    "sums.wgsl": FOLD = "fold", 2;
    "rotate.wgsl": ROTATE = "rotate", 4;
    "attend.wgsl": STORE = "store", 8; ATTEND = "attend", 8; ATTEND_ONE = "attend_one", 8;
        ATTEND_BACK_Q = "attend_back_q", 8; ATTEND_BACK_KV = "attend_back_kv", 7; WATCH = "watch", 8;
            WATCH_BACK = "watch_back", 8;
    "activate.wgsl": ACTIVATE = "activate", 2; ACTIVATE_BACK = "activate_back", 3;
    "element.wgsl": ADD = "add", 3; ADD_BACK = "add_back", 3; MULTIPLY = "multiply", 3; SCALE = "scale", 2;
        SCALE_BACK = "scale_back", 3; DROPOUT = "dropout", 2; GATHER = "gather", 3; GATHER_BACK = "gather_back", 3;
    "classify.wgsl": CLASSIFY = "classify", 6;
    "update.wgsl": SQUARES = "squares", 2; NORM_OF = "norm_of", 2; HOLD = "hold", 2; UPDATE = "update", 6;
        MOMENTUM = "momentum", 5; BLEND = "blend", 3;
    "roof.wgsl": MULTIPLY_ADDS = "multiply_adds", 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel in every form that a run may ask for; all that fails is named.
    #[test]
    fn every_kernel_compiles() {
        let Some(device) = crate::test_device::device() else { return };
        let mut flaws = vec![];
        for kernel in ALL {
            let ways = || [(false, false), (false, true), (true, false), (true, true)];
            let product = |rows: usize| {
                let forms = [[false, true], [false; 2], [true, false]].into_iter().flat_map(move |across| {
                    ways().map(|(a, b)| Variant { across, rows, fours: [a, b], rounds: a, ..Variant::default() })
                });
                forms.collect::<Vec<_>>()
            };
            let forms: Vec<Variant> = match (kernel.text.contains("(D + 3u)"), kernel.entry) {
                (true, _) => [1, 2, 6, 64, 80, 128, 256].map(|d| Variant::heads(d, d % 4 == 0)).into(),
                (_, "product") => [4, 8].into_iter().flat_map(product).collect(),
                (_, "product_f16") if device.adapter.matrices.is_none() => vec![],
                (_, "product_f16") => {
                    let matrices = device.adapter.matrices;
                    let both = [1, 4].into_iter().flat_map(product);
                    both.map(|how| Variant { rounds: false, matrices, ..how }).collect()
                }
                (_, "thin") => [1, 2, 4, 8].into_iter().flat_map(product).collect(),
                _ => vec![Variant::default()],
            };
            flaws.extend(forms.into_iter().filter_map(|how| device.compiled(kernel, how).err()));
        }
        assert!(flaws.is_empty(), "{}", flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }
}
