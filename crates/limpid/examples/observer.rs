//! A backend of one's own that watches another: which op makes the largest value? `cargo run --release --example
//! observer -- runs/1 TEXT`.
//!
//! A backend gets slices of the model's list of ops. A backend that runs them op by op can read every tensor in
//! between, and the bits are the same. What an observer leaves out, the backend inside does.

use limpid::backend::{Backend, Cpu, Result, Wrapper};
use limpid::model::{Mode, Model};
use limpid::ops::{Batch, Ops};
use limpid::trace;
use limpid::{Error, Lm};

/// Runs ops on another backend, one at a time, and records the largest magnitude of each output.
pub struct Observer<B> {
    inner: B,
    batch: Batch,
    /// One for each op that ran.
    pub largest: Vec<f32>,
}

impl<B: Backend> Observer<B> {
    /// Watches `inner`.
    pub fn new(inner: B) -> Observer<B> {
        Observer { inner, batch: Batch::default(), largest: vec![] }
    }
}

impl<B: Backend> Wrapper for Observer<B> {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }
    fn inner_mut(&mut self) -> &mut dyn Backend {
        &mut self.inner
    }
    fn feed(&mut self, batch: &Batch) -> Result<()> {
        self.batch = batch.clone();
        self.inner.feed(batch)
    }
    fn forward(&mut self, ops: Ops) -> Result<()> {
        for (op, alone) in ops.each() {
            self.inner.forward(alone)?;
            let made = self.inner.read(op.output().for_batch(&self.batch))?;
            self.largest.push(made.iter().fold(0.0, |most, v| v.abs().max(most)));
        }
        Ok(())
    }
}

/// The name and the largest magnitude of each op's output, and the logits.
type Seen = (Vec<(String, f32)>, Vec<f32>);

/// Runs a text on an observer.
pub fn watch(lm: &Lm, text: &str) -> Result<Seen, Error> {
    let ids = lm.encode(text)?;
    let model = Model::new(lm.config(), Mode::Inspect { batch: 1, context: ids.len() })?;
    let mut observer = Observer::new(Cpu::new(&model, 1));
    let backend: &mut dyn Backend = &mut observer;
    lm.load(&model, backend)?;
    backend.feed(&trace::batch(lm.config(), &ids, None, None)?)?;
    backend.forward(model.ops())?;
    let names = (0..model.ops().len()).map(|i| model.output_name(i).to_string());
    let logits = backend.read(model.logits().expect("a model with a head"))?;
    Ok((names.zip(observer.largest).collect(), logits))
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let lm = Lm::open(arguments.next().expect("a model"))?;
    for (name, largest) in watch(&lm, &arguments.next().expect("a text"))?.0 {
        println!("{largest:10.4}  {name}");
    }
    Ok(())
}
