//! Where in the transformer a parameter or an activation is: in which block, and in which part of it.
//!
//! The builder says so once, with a [`Module`]. Here names are made from modules ([`Module::named`]), and the block is
//! read from a name that comes as text from a user, a file or a table ([`in_block`]). Everyone else asks the module.

use crate::config::{Axis, axis};

axis! {
    /// A part of the model (the first and the last ones) or of each block, by its name inside it.
    Component, "part of the model" {
        /// All of it, the model or a block: what is of no smaller part, such as its residual stream.
        Whole = "",
        /// The token table.
        Embed = "embed",
        /// The product from an embedding with a width of its own to the stream.
        EmbedProject = "embed.project",
        /// The position table.
        PosEmbed = "pos_embed",
        /// The segment table.
        SegmentEmbed = "segment_embed",
        /// The norm of the embedding.
        EmbedNorm = "embed_norm",
        /// The norm before attention; after the first sum in post-norm models.
        FirstNorm = "ln1",
        /// The norm of what attention gives.
        FirstPostNorm = "ln1_post",
        /// The norm before the feed-forward network; after the second sum in post-norm models.
        SecondNorm = "ln2",
        /// The norm of what the feed-forward network gives.
        SecondPostNorm = "ln2_post",
        /// Attention, but for what belongs to one of its products or norms.
        Attention = "attn",
        /// The product that gives queries, keys and values.
        Qkv = "attn.qkv",
        /// The norm of the queries.
        QueryNorm = "attn.q_norm",
        /// The norm of the keys.
        KeyNorm = "attn.k_norm",
        /// The product from the heads back to the stream.
        AttentionOut = "attn.out",
        /// The feed-forward network, but for what belongs to one of its products.
        FeedForward = "mlp",
        /// The product into the gate.
        FeedForwardGate = "mlp.gate",
        /// The product into the feed-forward network.
        FeedForwardIn = "mlp.in",
        /// The product out of it.
        FeedForwardOut = "mlp.out",
        /// The norm before the head.
        FinalNorm = "ln_final",
        /// What BERT computes before the head's product.
        Head = "head",
        /// The product of [`Component::Head`].
        HeadDense = "head.dense",
        /// The norm of [`Component::Head`].
        HeadNorm = "head.ln",
        /// The head's product: logits.
        Unembed = "unembed",
    }
}

impl Component {
    /// Whether it belongs to attention.
    pub fn is_attention(self) -> bool {
        matches!(
            self,
            Component::Attention | Component::Qkv | Component::QueryNorm | Component::KeyNorm | Component::AttentionOut
        )
    }

    /// The group under which its parameters are counted in summaries.
    pub fn group(self) -> &'static str {
        match self {
            Component::Embed => "token embedding",
            Component::EmbedProject => "embedding projection",
            Component::PosEmbed => "position embedding",
            Component::SegmentEmbed => "segment embedding",
            Component::Attention
            | Component::Qkv
            | Component::QueryNorm
            | Component::KeyNorm
            | Component::AttentionOut => "attention",
            Component::FeedForward
            | Component::FeedForwardGate
            | Component::FeedForwardIn
            | Component::FeedForwardOut => "feed-forward",
            Component::EmbedNorm
            | Component::FirstNorm
            | Component::FirstPostNorm
            | Component::SecondNorm
            | Component::SecondPostNorm
            | Component::FinalNorm
            | Component::HeadNorm => "norms",
            Component::Whole | Component::Head | Component::HeadDense | Component::Unembed => "head",
        }
    }
}

/// A part of a block, or of the model outside of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Module {
    /// The block, from 0; `None` outside of the blocks.
    pub block: Option<usize>,
    /// The part.
    pub part: Component,
}

impl Module {
    /// The model as a whole.
    pub const MODEL: Module = Module { block: None, part: Component::Whole };

    /// A block as a whole.
    pub fn block(i: usize) -> Module {
        Module { block: Some(i), part: Component::Whole }
    }

    /// A part of the same block, or of the model.
    pub fn part(self, part: Component) -> Module {
        Module { part, ..self }
    }

    /// Its name: `blocks.0.attn.qkv`, `ln_final`; empty for the model as a whole.
    pub fn name(self) -> String {
        self.block.map_or(self.part.name().into(), |i| self.pattern(&i.to_string()))
    }

    /// Its name with `number` in place of a block's number: `blocks.*.attn.qkv`.
    pub fn pattern(self, number: &str) -> String {
        match (self.block, self.part.name()) {
            (None, part) => part.into(),
            (Some(_), "") => format!("blocks.{number}"),
            (Some(_), part) => format!("blocks.{number}.{part}"),
        }
    }

    /// The name of something in it: `blocks.0.attn.hook_z`, `logits`.
    pub fn named(self, own: &str) -> String {
        inside(self.name(), own)
    }

    /// The layer that it belongs to, as statistics are kept: a block, or what the model has before and behind its
    /// blocks.
    pub fn layer(self) -> Module {
        let part = match self.part {
            _ if self.block.is_some() => Component::Whole,
            Component::EmbedProject => Component::Embed,
            Component::HeadDense | Component::HeadNorm => Component::Head,
            part => part,
        };
        Module { part, ..self }
    }
}

/// The name of something in a module of that name.
pub(super) fn inside(module: String, own: &str) -> String {
    if module.is_empty() { own.into() } else { module + "." + own }
}

/// The block that a name is of and what the name is inside it: 3 and `attn.hook_z` for `blocks.3.attn.hook_z`, 3 and
/// nothing for `blocks.3`; `None` for a name outside of the blocks.
pub fn in_block(name: &str) -> Option<(usize, &str)> {
    let rest = name.strip_prefix("blocks.")?;
    let (number, own) = rest.split_once('.').unwrap_or((rest, ""));
    Some((number.parse().ok()?, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_and_read() {
        let qkv = Module::block(3).part(Component::Qkv);
        let names = [qkv.name(), qkv.pattern("*"), qkv.named("weight"), Module::block(3).named("hook_resid_pre")];
        let want = ["blocks.3.attn.qkv", "blocks.*.attn.qkv", "blocks.3.attn.qkv.weight", "blocks.3.hook_resid_pre"];
        assert_eq!(names, want);
        assert_eq!([Module::MODEL.named("logits"), Module::MODEL.name()], ["logits", ""]);
        assert_eq!(Module::MODEL.part(Component::FinalNorm).named("bias"), "ln_final.bias");

        assert_eq!(in_block(&qkv.named("weight")), Some((3, "attn.qkv.weight")));
        assert_eq!(in_block(&qkv.layer().name()), Some((3, "")));
        for other in ["logits", "embed.weight", "blocks", "blocks.x.ln1.weight", "blocks.", "myblocks.3.ln1"] {
            assert_eq!(in_block(other), None, "{other}");
        }
        let layers = [Component::EmbedProject, Component::HeadNorm, Component::PosEmbed]
            .map(|p| Module::MODEL.part(p).layer().name());
        assert_eq!(layers, ["embed", "head", "pos_embed"]);
    }
}
