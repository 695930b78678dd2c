//! All handlers on one axis.

use super::drawing::{Axis, Plot, series};
use crate::curve;
use crate::document::Figure;
use profiler_base::stats::median;
use profiler_recording::{HandlerRecording, Meter};

/// How far a handler's calls reach. The axis is logarithmic: nothing is below 1.
pub(super) struct Extent {
    average: f64,
    /// TP50, TP90, TP95, TP99.
    percentiles: [f64; 4],
}

impl Extent {
    /// Medians over the runs that `handlers` are of.
    pub(super) fn of(handlers: &[&HandlerRecording]) -> Option<Self> {
        let at = |quantile| over(handlers, |of| Some(of.quantile_ns(quantile)? as f64));
        let percentiles = [at(0.5)?, at(0.9)?, at(0.95)?, at(0.99)?];
        Some(Self { average: over(handlers, HandlerRecording::mean_ns)?, percentiles })
    }
}

fn over(
    handlers: &[&HandlerRecording],
    figure: impl Fn(&HandlerRecording) -> Option<f64>,
) -> Option<f64> {
    let each = handlers.iter().filter_map(|handler| figure(handler));
    Some(median(&Vec::from_iter(each))?.max(1.0))
}

/// From TP50 to TP99 of each handler, with its average; `None` if there are fewer than two.
pub(super) fn drawn(all: &[(String, Extent)], meter: Meter, which: &str) -> Option<Figure> {
    if all.len() < 2 {
        return None;
    }
    let values = all.iter().flat_map(|(_, of)| of.percentiles.into_iter().chain([of.average]));
    let (low, high) = (values.clone().fold(f64::MAX, f64::min), values.fold(1.0, f64::max));
    let axis = Axis {
        range: [low / 1.2, high * 1.2],
        is_logarithmic: true,
        what: curve::what(meter),
        labels: 8,
        format: curve::label(meter),
    };
    let mut plot = Plot::of_rows(all.len(), 20.0, axis);
    for (number, (name, of)) in all.iter().enumerate() {
        plot.row(number, name, "");
        let (y, colour) = (number as f64 + 0.5, series(0));
        let [tp50, .., tp99] = of.percentiles;
        plot.line(&[(tp50, y), (tp99, y)], colour, 2);
        for tick in of.percentiles {
            plot.line(&[(tick, y - 0.13), (tick, y + 0.13)], colour, 2);
        }
        plot.dot((of.average, y), colour);
    }
    let caption =
        "From TP50 to TP99 of each handler, with ticks at TP90 and TP95; the dot is the average";
    Some(Figure {
        label: "TP50 to TP99 and average of all handlers".to_owned(),
        svg: plot.svg(),
        caption: format!("{caption}{which}"),
        wide: true,
    })
}
