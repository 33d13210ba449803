//! A backend around another one: an observer, or a test in which something fails.
//!
//! A [`Wrapper`] names the backend inside and has the methods that it changes. All others go to the backend inside:
//! none can be forgotten, because a method that [`Backend`] requires must be listed here before anything compiles.

use super::{Backend, DeviceBytes, Result, SharedWeights, ThreadChooser, Ticket, UpdateReport};
use crate::matrix::Precision;
use crate::numeric::element::Values;
use crate::ops::{Batch, Ops, Passes, Region};
use crate::optimizer::{Change, ParamGroup, Rule};
use std::ops::Range;

/// Makes [`Wrapper`] and the backend that every wrapper is, of two lists of methods: those of `&self` and those of
/// `&mut self`.
macro_rules! wrapper {
    (
        reads { $(fn $reads:ident($($from:ident: $From:ty),*) -> $Read:ty;)* }
        changes { $(fn $changes:ident($($with:ident: $With:ty),*) $(-> $Changed:ty)?;)* }
    ) => {
        /// A backend around another one, which does what it does not do itself. Every wrapper is a [`Backend`].
        ///
        /// ```
        /// use limpid_core::backend::{Backend, Result, Wrapper};
        /// use limpid_core::ops::Ops;
        ///
        /// /// Counts the ops that it runs.
        /// struct Counter<B> {
        ///     inner: B,
        ///     ops: usize,
        /// }
        ///
        /// impl<B: Backend> Wrapper for Counter<B> {
        ///     fn inner(&self) -> &dyn Backend {
        ///         &self.inner
        ///     }
        ///     fn inner_mut(&mut self) -> &mut dyn Backend {
        ///         &mut self.inner
        ///     }
        ///     fn forward(&mut self, ops: Ops) -> Result<()> {
        ///         self.ops += ops.len();
        ///         self.inner.forward(ops)
        ///     }
        /// }
        /// ```
        pub trait Wrapper: Send {
            /// The backend inside.
            fn inner(&self) -> &dyn Backend;
            /// The same, to be changed.
            fn inner_mut(&mut self) -> &mut dyn Backend;
            $(
                #[doc = concat!("[`Backend::", stringify!($reads), "`]: of the backend inside, unless it is replaced.")]
                ///
                /// # Errors
                /// As there.
                fn $reads(&self, $($from: $From),*) -> $Read {
                    self.inner().$reads($($from),*)
                }
            )*
            $(
                #[doc = concat!("[`Backend::", stringify!($changes),
                "`]: of the backend inside, unless it is replaced.")]
                ///
                /// # Errors
                /// As there.
                fn $changes(&mut self, $($with: $With),*) $(-> $Changed)? {
                    self.inner_mut().$changes($($with),*)
                }
            )*
        }

        impl<W: Wrapper> Backend for W {
            $(
                fn $reads(&self, $($from: $From),*) -> $Read {
                    Wrapper::$reads(self, $($from),*)
                }
            )*
            $(
                fn $changes(&mut self, $($with: $With),*) $(-> $Changed)? {
                    Wrapper::$changes(self, $($with),*)
                }
            )*
        }
    };
}

wrapper! {
    reads {
        fn precision() -> Precision;
        fn runs_ahead() -> bool;
        fn thread_choosers() -> &[ThreadChooser];
        fn transferred() -> DeviceBytes;
        fn can_update(groups: &[ParamGroup]) -> Result<()>;
        fn request(region: Region) -> Result<Ticket>;
        fn fetch(ticket: Ticket, to: &mut [f32]) -> Result<()>;
        fn read_to(region: Region, to: &mut [f32]) -> Result<()>;
        fn sum(region: Region) -> Result<f64>;
    }
    changes {
        fn feed(batch: &Batch) -> Result<()>;
        fn forward(ops: Ops) -> Result<()>;
        fn backward(back: Passes) -> Result<()>;
        fn push_gradients() -> Result<()>;
        fn add_pushed() -> Result<()>;
        fn add_pushed_to(range: Range<usize>) -> Result<()>;
        fn clear() -> Result<()>;
        fn begin_update(groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()>;
        fn report(watch: &mut [Change]) -> Result<UpdateReport>;
        fn squares(groups: &[ParamGroup]) -> Result<Vec<f64>>;
        fn restrict_updates();
        fn average(groups: &[ParamGroup], decay: f64) -> Result<()>;
        fn share() -> Result<SharedWeights>;
        fn upload(region: Region, values: Values) -> Result<()>;
        fn upload_parts(region: Region, parts: &[Values]) -> Result<()>;
        fn fill(region: Region, value: &(dyn Fn(usize) -> f32 + Sync)) -> Result<()>;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Cpu, Reference};
    use crate::config::Config;
    use crate::model::{Mode, Model, Tuning};
    use crate::numeric::blocks::Quant;
    use crate::numeric::element::{Element, Major};
    use crate::numeric::random;
    use crate::numeric::simd::Level;
    use crate::ops::MemorySpace;
    use crate::optimizer::Method;

    /// Changes nothing.
    struct Plain(Box<dyn Backend>);

    impl Wrapper for Plain {
        fn inner(&self) -> &dyn Backend {
            &*self.0
        }
        fn inner_mut(&mut self) -> &mut dyn Backend {
            &mut *self.0
        }
    }

    /// What each method gives, in bits, and in the end all that the backend has in its memory.
    fn everything(model: &Model, backend: &mut dyn Backend) -> Vec<(&'static str, Vec<u64>)> {
        let value = |i: usize| 0.1 * random::normal(3, 1, i as u64) as f32;
        let widths = |values: &[f32]| values.iter().map(|v| u64::from(v.to_bits())).collect::<Vec<_>>();
        let mut seen = vec![];

        for param in &model.params {
            backend.fill(param.region, &value).unwrap();
        }
        let [embed, frozen] = ["embed.weight", "blocks.0.mlp.in.weight"].map(|name| model.param(name).unwrap().region);
        let values: Vec<f32> = (0..embed.len()).map(|i| value(i + 7)).collect();
        backend.upload(embed, Values::f32(&values, Major::Columns)).unwrap();
        let bytes: Vec<u8> = (0..frozen.len() / 32).flat_map(|i| [0, 0x28].into_iter().chain([i as u8; 32])).collect();
        let element = Element::Blocks(Quant::Q8_0);
        let blocks = |bytes| Values { element, bytes, major: Major::Rows };
        let (first, second) = bytes.split_at(bytes.len() / 2);
        backend.upload_parts(frozen, &[blocks(first), blocks(second)]).unwrap();

        let groups = model.update_groups(0.1, Method::AdamW);
        seen.push(("precision", vec![backend.precision() as u64]));
        seen.push(("runs_ahead", vec![backend.runs_ahead().into()]));
        let moved = backend.transferred();
        seen.push(("transferred", vec![moved.to, moved.from]));
        seen.push(("can_update", vec![backend.can_update(&groups).is_ok().into()]));
        backend.restrict_updates();
        let ids = |site| (0..12).map(|i| random::below(5, site, i, 40) as u32).collect();
        let run = |backend: &mut dyn Backend, site| {
            backend.feed(&Batch::of_sequences(ids(site), ids(site + 1), 6)).unwrap();
            backend.forward(model.body()).unwrap();
            backend.backward(model.back()).unwrap();
        };
        let rule = Rule {
            method: Method::AdamW,
            rate: 0.01,
            beta1: 0.9,
            beta2: 0.99,
            momentum: 0.9,
            eps: 1e-8,
            step: 1,
            max_norm: 1.0,
            norm: None,
            most_loss: None,
        };
        for step in 0..2 {
            run(backend, 2 * step);
            backend.push_gradients().unwrap();
            run(backend, 2 * step + 1);
            if step == 0 {
                backend.add_pushed().unwrap();
            } else {
                backend.add_pushed_to(groups[0].range.clone()).unwrap();
            }
            let squares = backend.squares(&groups).unwrap();
            seen.push(("squares", squares.into_iter().map(f64::to_bits).collect()));
            let losses = model.losses().unwrap();
            seen.push(("sum", vec![backend.sum(losses).unwrap().to_bits()]));
            seen.push(("read", widths(&backend.read(losses).unwrap())));
            let mut watch = vec![Change::new(embed.range())];
            backend.begin_update(&groups, &Rule { step: step + 1, ..rule }, &watch).unwrap();
            let report = backend.report(&mut watch).unwrap();
            let Change { gradient, weight, update, .. } = watch[0];
            seen.push(("report", [report.norm, gradient, weight, update].map(f64::to_bits).to_vec()));
            backend.average(&groups, 0.9).unwrap();
        }
        run(backend, 9);
        let ticket = backend.request(embed.grad()).unwrap();
        backend.clear().unwrap();
        let mut gradient = vec![0.0; embed.len()];
        backend.fetch(ticket, &mut gradient).unwrap();
        seen.push(("fetch", widths(&gradient)));
        for space in
            [MemorySpace::Param, MemorySpace::Grad, MemorySpace::Moment1, MemorySpace::Moment2, MemorySpace::Average]
        {
            for param in model.learning() {
                let mut values = vec![0.0; param.region.len()];
                backend.read_to(param.region.in_space(space), &mut values).unwrap();
                seen.push(("read_to", widths(&values)));
            }
        }
        seen.push(("frozen", widths(&backend.read(frozen).unwrap())));
        let shared = backend.share().map(|shared| shared.values("ln_final.weight").unwrap().unwrap());
        seen.push(("share", shared.map_or(vec![], |values| widths(&values))));
        seen
    }

    #[test]
    fn a_wrapper_that_changes_nothing_gives_the_same_bits() {
        let config = Config {
            vocab_size: 40,
            context_length: 6,
            d_model: 32,
            n_head: 2,
            n_layer: 1,
            d_ff: 64,
            ..Config::default()
        };
        let tuning = Tuning { freeze: vec!["blocks.0.mlp.in.weight".into()], ..Tuning::default() };
        let model = Model::tuned(&config, Mode::Train { batch: 2, context: 6 }, &tuning).unwrap();
        let cpu = |precision| Box::new(Cpu::with(&model, 2, Level::best(), precision)) as Box<dyn Backend>;
        let reference = || Box::new(Reference::new(&model)) as Box<dyn Backend>;
        let pairs = [
            [cpu(Precision::F32), cpu(Precision::F32)],
            [cpu(Precision::Bf16), cpu(Precision::Bf16)],
            [reference(), reference()],
        ];
        for [mut alone, inside] in pairs {
            let want = everything(&model, &mut *alone);
            let got = everything(&model, &mut Plain(inside));
            for ((method, got), (_, want)) in got.iter().zip(&want) {
                assert!(got == want, "{method} in {}", alone.precision());
            }
            assert_eq!(got.len(), want.len());
        }
    }
}
