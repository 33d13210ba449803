//! One step of training, weight by weight: new = old − η gradient.

use super::{Class, Topic};
use limpid::{Error, Machine, Training, TrainingPlan};
use limpid_core::config::{Config, Dropout};
use limpid_core::model::{Mode, Model};
use limpid_core::optimizer::Method;
use limpid_data::source::TextSource;
use limpid_train::{Recipe, Trainer, WindowOrder};

/// Learning rates of SGD and of Adam.
const RATES: [f64; 2] = [0.1, 0.01];

/// One step of training.
pub(super) const TOPIC: Topic = Topic {
    name: "one-step",
    title: "What does one step of training do to a weight?",
    about: "Takes one step of SGD and one of Adam from the same initial weights, with the model of 601 parameters and \
            the eight words of \"Decoder-Only Transformer Architecture\", and compares every weight before and after \
            with the gradient of the loss. Then it takes steps of SGD of several sizes.",
    teach: |class| {
        let [sgd, adam] =
            [(Method::Sgd, RATES[0]), (Method::AdamW, RATES[1])].map(|(method, rate)| step(class, method, rate));
        let (sgd, adam) = (sgd?, adam?);
        for (found, rate, title) in [
            (&sgd, RATES[0], "SGD, η = 0.1: of each tensor the weight with the greatest gradient"),
            (&adam, RATES[1], "Adam's first step, η = 0.01: the same weights"),
        ] {
            let row = |tensor: &Moved| {
                // the element with the greatest gradient
                let (at, g) = tensor.gradient.iter().enumerate().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
                let [old, new] = [tensor.old[at], tensor.new[at]];
                let cells = [old, *g, -(rate as f32) * g, new - old, new].map(|v| format!("{v:.5}"));
                Some([format!("{}[{at}]", tensor.name)].into_iter().chain(cells).collect())
            };
            let headers = ["weight", "old", "gradient g", "−η g", "new − old", "new"];
            class.table(title, headers, found.tensors.iter().filter_map(row));
        }
        let rates = [0.001, 0.01, 0.1, 1.0, 10.0];
        let after = rates.map(|rate| step(class, Method::Sgd, rate).map(|found| found.after));
        let after: Vec<f64> = after.into_iter().collect::<Result<_, _>>()?;
        let squares: f64 = sgd.each().map(|(_, g, _)| g * g).sum();
        let row = |(rate, loss): (&f64, &f64)| {
            let fall = [sgd.loss - loss, rate * squares];
            [rate.to_string(), format!("{loss:.4}")].into_iter().chain(fall.map(|v| format!("{v:.4}"))).collect()
        };
        let title = format!("The loss of the batch was {:.4}. After a step of SGD", sgd.loss);
        class.table(title, ["η", "loss", "it fell by", "η |g|²"], rates.iter().zip(&after).map(row));
        let rate = f64::from(RATES[0] as f32);
        let off = sgd
            .each()
            .map(|(old, g, new)| (new - (old - rate * g)).abs() / new.abs().max(f64::from(f32::MIN_POSITIVE)));
        let off = off.fold(0.0, f64::max) / f64::from(f32::EPSILON);
        let sizes =
            adam.each().filter(|(_, g, _)| g.abs() > 1e-5).map(|(old, g, new)| (old - new) / RATES[1] * g.signum());
        let (least, most) = sizes.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), s| (a.min(s), b.max(s)));
        let first = (sgd.loss - after[0]) / (rates[0] * squares);
        class.claim(format!("SGD: new = old − η g for all {} weights", sgd.each().count()));
        class.at_most("greatest difference, in units of f32's rounding", off, 1.0);
        class.claim(
            "Adam's first step is η long for every weight, against its gradient, however large that is (above 1e-5)",
        );
        class.between("shortest, in η", least, 0.99, 1.01);
        class.between("longest", most, 0.99, 1.01);
        class.claim("A small step lowers the loss by η |g|², as the gradient says");
        class.between("what it fell by at η = 0.001, as a share of that", first, 0.97, 1.03);
        class.claim("The step of SGD lowers the loss of its batch");
        class.at_most("loss after less before", sgd.after - sgd.loss, -0.005);
        Ok(())
    },
};

/// A tensor before and after a step.
struct Moved {
    name: String,
    old: Vec<f32>,
    gradient: Vec<f32>,
    new: Vec<f32>,
}

/// A step, with the loss of its batch before and after.
struct TakenStep {
    loss: f64,
    after: f64,
    tensors: Vec<Moved>,
}

impl TakenStep {
    /// Every weight: old, its gradient, new.
    fn each(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let of = |t: &Moved, i: usize| (f64::from(t.old[i]), f64::from(t.gradient[i]), f64::from(t.new[i]));
        self.tensors.iter().flat_map(move |t| (0..t.old.len()).map(move |i| of(t, i)))
    }
}

/// The first step of a training.
fn step(class: &Class, optimizer: Method, learning_rate: f64) -> Result<TakenStep, Error> {
    let config = Config { dropout: Dropout::NONE, ..Config::preset("decoder-readme")? };
    let recipe = Recipe {
        optimizer,
        clip: 0.0,
        weight_decay: 0.0,
        val_fraction: 0.0,
        windows: WindowOrder::Sequential,
        seed: class.seed,
        ..Recipe::preset("decoder-readme")?
    };
    let training = Training::new(config, recipe).source(TextSource::new("builtin:s3")).machine(Machine::cpu(1));
    let TrainingPlan { config, recipe, corpus, objective, .. } = training.prepare()?;
    let model = Model::new(&config, Mode::Train { batch: recipe.batch_size, context: recipe.context })?;
    let backend = Machine::cpu(1).start(&model)?;
    let mut trainer = Trainer::new(model, backend, recipe)?;
    let batches = recipe.batches(&corpus.train, objective)?;
    let read = |trainer: &Trainer, gradient: bool| -> Result<Vec<Vec<f32>>, Error> {
        let region = |p: &limpid_core::model::Param| if gradient { p.region.grad() } else { p.region };
        trainer.model.params.iter().map(|p| Ok(trainer.backend.read(region(p))?)).collect()
    };
    let before = trainer.gradient(&batches)?;
    let (old, gradients) = (read(&trainer, false)?, read(&trainer, true)?);
    trainer.update(&batches, before, learning_rate, &mut [])?;
    let new = read(&trainer, false)?;
    trainer.set_steps_done(0); // the same batch again
    let after = trainer.gradient(&batches)?;
    let (loss, after) = before.loss.zip(after.loss).expect("every next token is predicted");
    let names = trainer.model.params.iter().map(|param| param.name.clone());
    let tensors = names.zip(old).zip(gradients).zip(new);
    let tensors = tensors.map(|(((name, old), gradient), new)| Moved { name, old, gradient, new }).collect();
    Ok(TakenStep { loss, after, tensors })
}
