//! What encodings of positions are worth, and what a model without any knows of the order of words.

use super::Topic;
use super::training::{Course, Study, Text, cell};
use limpid::{Error, Machine};
use limpid_core::config::{Config, Positions};
use limpid_core::model::{Mode, Model, Tuning, init};
use limpid_core::numeric::random;
use limpid_core::ops::{Batch, IGNORE};
use limpid_tokenizer::TokenizerKind;
use limpid_trace::{Keep, Trace};

/// What encodings of positions are worth.
pub(super) const TOPIC: Topic = Topic {
    name: "positions",
    title: "What do positions tell a model, and which encoding is best?",
    about: "First, without training: the earlier words of a sequence change places, and the lesson measures how far \
            the logits of the last word move, in models of one and two blocks with random weights. Then it trains a \
            model of two blocks with each encoding; `random` is a learned table that is not trained, `sinusoidal / 7` \
            is sinusoids as small as the token vectors are before training.",
    teach: |class| {
        let moved = |positions, n_layer| moved(positions, n_layer, class.seed);
        let cases = [
            ("none, 1 block", Positions::None, 1),
            ("none, 2 blocks", Positions::None, 2),
            ("learned, 1 block", Positions::Learned, 1),
        ];
        let by: Vec<f64> =
            cases.iter().map(|(_, positions, blocks)| moved(*positions, *blocks)).collect::<Result<_, _>>()?;
        let rows = cases.iter().zip(&by).map(|((name, ..), by)| row![name, format!("{by:.0e}")]);
        let title =
            "Earlier words in another order: how far the last word's logits move, as a share of the greatest logit";
        class.table(title, ["positions", "moved by"], rows);

        let text = Text::new(200_000, TokenizerKind::Char)?;
        use Positions::{Learned, None, Rotary, Sinusoidal, SinusoidalOneBased};
        let kinds = [
            ("none", None),
            ("random", Learned),
            ("sinusoidal", Sinusoidal),
            ("sinusoidal-one-based", SinusoidalOneBased),
            ("sinusoidal / 7", Learned),
            ("learned", Learned),
            ("rotary", Rotary),
        ];
        let study = |(name, positions): (&str, Positions)| -> Result<(String, Study), Error> {
            let mut study = Study::judged()?;
            study.config.positions = positions;
            if name == "sinusoidal / 7" {
                study.sinusoids = 1.0 / 7.0;
            }
            if matches!(name, "random" | "sinusoidal / 7") {
                study.tuning = Tuning { freeze: vec!["pos_embed.*".into()], ..Tuning::default() };
            }
            Ok((name.into(), study))
        };
        let studies: Vec<_> = kinds.into_iter().map(study).collect::<Result<_, _>>()?;
        let losses: Vec<f64> = class.train(&text, &studies)?.iter().map(Course::end).collect();
        let rows = studies.iter().zip(&losses).map(|((name, _), loss)| row![name, cell(*loss)]);
        let title = format!("After {} steps, stories as characters", studies[0].1.recipe.steps);
        class.table(title, ["positions", "validation loss"], rows);
        let [none, random, sinusoidal, one_based, small, learned, rotary] = losses[..] else {
            unreachable!("one loss a kind")
        };
        class.claim("Without positions one block does not know the order of the words before: it sees a set");
        class.at_most("moved by rounding only", by[0], 1e-5);
        class.at_least("with learned positions", by[2], 1e-2);
        class.claim("With two blocks the causal mask lets order in");
        class.at_least("moved without positions", by[1], 1e-3);
        class.claim(
            "In so short a training sinusoids of their own size, several times a token's vector, are behind learned \
             positions",
        );
        class.at_most("loss with learned ones less that with sinusoidal", learned - sinusoidal, -0.05);
        class.at_most("with sinusoidal-one-based", learned - one_based, -0.05);
        class.claim("It is their size: sinusoids as small as the token vectors are not behind");
        class.at_most("loss with sinusoidal / 7 less that with learned ones", small - learned, 0.02);
        class.claim(
            "In so short a training a model without positions is ahead of learned, random and large sinusoidal ones",
        );
        class.at_most("loss without less that with learned ones", none - learned, -0.005);
        class.at_most("with random ones", none - random, -0.01);
        class.at_most("with sinusoids", none - sinusoidal.min(one_based), -0.01);
        class.claim("Rotary positions are ahead of all others");
        class.at_most(
            "loss with rotary ones less the least of the others",
            rotary - none.min(random).min(sinusoidal).min(one_based).min(small).min(learned),
            -0.03,
        );
        Ok(())
    },
};

/// How far the last row's logits move when the rows before it change places, as a share of the greatest.
fn moved(positions: Positions, n_layer: usize, seed: u64) -> Result<f64, Error> {
    let context = 8;
    let config = Config { vocab_size: 20, context_length: context, positions, n_layer, ..Study::small(1)?.config };
    let model = Model::new(&config, Mode::Inspect { batch: 1, context })?;
    let ids: Vec<u32> = (0..context as u64).map(|i| random::permuted(seed, 1, i, 20) as u32).collect();
    let other = (0..7).rev().map(|i| ids[i]).chain([ids[7]]).collect();
    let logits = |ids: Vec<u32>| -> Result<Vec<f32>, Error> {
        let mut backend = Machine::cpu(1).start(&model)?;
        for param in &model.params {
            backend.fill(param.region, &init::value(&model, param, init::Init::Gpt2, 0.3, seed))?;
        }
        let batch = Batch::of_sequences(ids, vec![IGNORE; context], context);
        let all = Trace::run(&model, backend, &batch, Keep::All)?.get("logits")?.values;
        Ok(all[all.len() - config.vocab_size..].to_vec())
    };
    let (before, after) = (logits(ids.clone())?, logits(other)?);
    let greatest = before.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    Ok(f64::from(before.iter().zip(&after).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / greatest))
}
