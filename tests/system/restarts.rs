//! Systems that stop in the middle and start again, on the same folder or the same servers.

use crate::place::Place;
use crate::workers::echo;
use harness::wait_for;

stories![a_system_that_is_stopped_in_the_middle_goes_on_where_it_was];

async fn a_system_that_is_stopped_in_the_middle_goes_on_where_it_was(place: Place) {
    let mut system = place.run(echo()).await;
    system.client.put("j", &place.range(4000)).await.unwrap();
    let mut before = -1;
    for _ in 0..3 {
        before = wait_for("more items than before", async || {
            match system.job("j").await.completed_items {
                items if items > before => Ok(items),
                items => Err(format!("{items} items")),
            }
        })
        .await;
        system.stop().await;
        system = place.run(echo()).await;
        assert!(system.job("j").await.completed_items >= before);
    }
    system.completed("j", 4000).await;
    system.has_outputs(&place.pipe("output"), 1..=4000).await;
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| place.pipe(pipe)))
        .await;
    system.stop().await;
}
