//! The table of kernels: each is an entry point of a file in `kernels/`, compiled when a run first needs it and kept with the
//! device. What is in front of every file is `common.wgsl`.

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
    /// Which operands of a product are stored across.
    pub across: [bool; 2],
}

impl Variant {
    /// For heads of `d` features.
    pub const fn heads(d: usize) -> Variant {
        Variant { d, across: [false; 2] }
    }
    /// The lines before a kernel's text.
    pub fn lines(self) -> String {
        // tiles of at most 8 KiB of keys, and as many of values: WebGPU promises 16
        let tile = if self.d <= 64 { 16 } else { 8 };
        if self.d == 0 { String::new() } else { format!("const D = {}u;\nconst TILE = {tile}u;\n", self.d) }
    }
    /// The constants of its pipeline.
    pub fn constants(self) -> Vec<(&'static str, f64)> {
        let names = ["ACROSS_A", "ACROSS_B"].into_iter().zip(self.across);
        names.filter(|(_, across)| *across).map(|(name, _)| (name, 1.0)).collect()
    }
}

/// The most features that a head may have.
pub const MOST_D: usize = 256;

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
    "norm.wgsl": NORM = "norm", 5; NORM_BACK = "norm_back", 6; NORM_GAINS = "norm_gains", 4; NORM_WATCH = "norm_watch", 6;
        NORM_SCALE = "norm_scale", 5;
    "linear.wgsl": PRODUCT = "product", 4; COLUMN_SUMS = "column_sums", 2; FOLD = "fold", 2;
    "rotate.wgsl": ROTATE = "rotate", 4;
    "attend.wgsl": STORE = "store", 8; ATTEND = "attend", 8; ATTEND_BACK_Q = "attend_back_q", 8;
        ATTEND_BACK_KV = "attend_back_kv", 7; WATCH = "watch", 8; WATCH_BACK = "watch_back", 8;
    "activate.wgsl": ACTIVATE = "activate", 2; ACTIVATE_BACK = "activate_back", 3;
    "element.wgsl": ADD = "add", 3; ADD_BACK = "add_back", 2; MULTIPLY = "multiply", 3; SCALE = "scale", 2;
        SCALE_BACK = "scale_back", 3; DROPOUT = "dropout", 2; GATHER = "gather", 3; GATHER_BACK = "gather_back", 3;
    "classify.wgsl": CLASSIFY = "classify", 6;
    "update.wgsl": SQUARES = "squares", 2; NORM_OF = "norm_of", 2; UPDATE = "update", 6; MOMENTUM = "momentum", 5;
        BLEND = "blend", 3;
    "roof.wgsl": MULTIPLY_ADDS = "multiply_adds", 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuChoice, GpuDevice};

    /// Every kernel in every form that a run may ask for; all that fails is named.
    #[test]
    fn every_kernel_compiles() {
        let Ok(device) = GpuDevice::open(&GpuChoice::Best) else { return };
        let mut flaws = vec![];
        for kernel in ALL {
            let forms: Vec<Variant> = match (kernel.text.contains("TILE * WIDE"), kernel.entry) {
                (true, _) => [1, 2, 6, 64, 80, 128, 256].map(Variant::heads).into(),
                (_, "product") => [[false, true], [false; 2], [true, false]]
                    .map(|across| Variant { across, ..Variant::default() })
                    .into(),
                _ => vec![Variant::default()],
            };
            flaws.extend(forms.into_iter().filter_map(|how| device.compiled(kernel, how).err()));
        }
        assert!(flaws.is_empty(), "{}", flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }
}
